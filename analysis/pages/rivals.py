"""Other methods beside ours: what each costs, and what it loses; what groups per head change."""

from __future__ import annotations

import pandas as pd

from analysis import rivals
from analysis.answers import ALL_FOUR, ALL_TASKS, SHOWN, tasks, within_reach
from analysis.cells import ROLES
from analysis.comparisons import MAIN_READING, compared, quality
from analysis.results import Results
from analysis.rows import Missing, need, only, row_of
from analysis.words import NONE, markdown, percent, pointed

WORST = 0.12  # what costs more stands in the table of results/tables alone
# Those that were read at several budgets.
SHARES = ("csa", "sparq", "longer_allocated", "allocated", "heavy", "quest", "ours", "moba",
          "trained_seer", "xattention", "streaming", "trained_indexer",
          "routing_transformer")  # fmt: skip
OURS = ("ours", "allocated", "sparq_groups")  # of ours, beside rivals, in the table of methods
LONGEST = "long_8192"  # the reading of the longest texts
# Experiments whose benchmarks are read under windows of several sizes.
ALONE, PAPERS = ("answers_window", "answers_longformer"), ("answers_paper_window", "answers_paper")
RECIPES = ("answers_ours_window", "answers")
KINDS = ("sparq", "allocated", "ours", "quest", "window", "moba")


def shown(results: Results) -> pd.DataFrame:
    """Rivals and ours at the recipe's own budget, the best first."""
    return rivals.variants(only(rivals.rows(results), budget=rivals.BUDGET))


def beside(results: Results) -> str:
    """What each costs and loses, a row each, full attention first."""
    own = shown(results)
    own = own[own["change"] < WORST]
    lost, length, full = answers(results)
    found = "" if full is None else f"{full:.0f}% found"
    above = [["full attention, adapted", "100%", NONE, "0", found, NONE]] if found else []
    below = [[ROLES[role], f"{each['distant_density']:.1%}", NONE, NONE, pointed(each),
              f"{NONE}, {each['seeds']}"]
             for role, each in lost.items() if role == "window"]  # fmt: skip
    told = []
    for _, row in need(own).iterrows():
        each = lost.get(row["role"])
        said, seeds = (NONE, NONE) if each is None else (pointed(each), str(each["seeds"]))
        told.append([ROLES.get(row["role"], row["cell"]), f"{row['distant_density']:.1%}",
                     rivals.about(row["role"]).scores, percent(row), said,
                     f"{int(row['seeds'])}, {seeds}"])  # fmt: skip
    asked = f"answers, {length:,} tokens" if length else "long-context answers"
    head = ["", "distant pairs", "cost of choosing keys", "perplexity", asked, "seeds"]
    return "\n".join(markdown(head, [*above, *told, *below], "lrlrrr"))


def methods(results: Results) -> str:
    """What each trains, what its choice takes, and what was left out of its paper: a row each."""
    own = only(rivals.rows(results), budget=[rivals.BUDGET, "own"], role=[*rivals.ABOUT, *OURS])
    told = []
    for _, row in need(own).sort_values("change").drop_duplicates("role").iterrows():
        known, found = rivals.about(row["role"]), rivals.counted(results, row)
        number, *shares, fast = found.values()
        told.append([
            ROLES[row["role"]], NONE if number is None else f"{number:,}",
            *(NONE if each is None or each != each else f"{each:.1f}%" for each in shares),
            "yes" if fast else "no", "yes" if known.generates else "no", known.left_out or NONE,
        ])  # fmt: skip
    length = int(own["context"].iloc[0])
    head = ["", "trained parameters", "pairs scored", f"work of choosing, {length:,} tokens",
            f"{rivals.LONGER:,} tokens", "fast path here", "generates", "left out"]  # fmt: skip
    return "\n".join(markdown(head, told, "lrrrrlll"))


def question(results: Results) -> str:
    """What full attention for a question and its answer brings back of the answers lost."""
    lost, length, _ = answers(results)
    told = []
    for role in ("ours", "allocated"):
        if {role, f"{role}_last"} <= set(lost):
            both = lost[role], lost[f"{role}_last"]
            kept, last = (f"{each['distant_density']:.1%}" for each in both)
            told.append([ROLES[role], kept, pointed(both[0]), last, pointed(both[1])])
    head = [f"answers, {length:,} tokens", "distant pairs", "mask alone", "distant pairs",
            "question in full"]  # fmt: skip
    return "\n".join(markdown(head, need(told)))


def reached(results: Results) -> str:
    """Points that benchmarks lose over all questions, and over those that a mask reaches: a row a
    window and number of worked examples."""
    frame = only(within_reach(results), texts=ALL_FOUR, experiment=[*ALONE, *PAPERS, *RECIPES])
    told = []
    for (shots, window), own in need(frame).groupby(["shots", "window"]):
        some, every = (int(own[name].max()) for name in ("reached_questions", "questions"))
        lost = (_lost(only(own, experiment=blocks), prefix)
                for blocks, parts in ((ALONE, ("", "reached_")), (PAPERS, ("", "reached_")),
                                      (RECIPES, ("reached_",))) for prefix in parts)  # fmt: skip
        told.append([str(shots or "none"), str(window), f"{some} of {every}", *lost])
    head = ["worked examples", "window", "questions reached", "window alone, all questions",
            "those reached", "the paper's setup, all questions", "those reached",
            "ours, those reached"]  # fmt: skip
    return "\n".join(markdown(head, told, "rrrrrrrr"))


def _lost(rows: pd.DataFrame, prefix: str) -> str:
    """Points with their interval; a dash where there is none, of too few questions."""
    ends = {f"points{end}": f"{prefix}{name}"
            for end, name in (("", "points"), ("_low", "low"), ("_high", "high"))}  # fmt: skip
    if rows.empty or rows[list(ends.values())].isna().any(axis=None):
        return NONE
    row = rows.iloc[0]
    return pointed({name: row[column] for name, column in ends.items()}).replace(" points", "")


def kinds(results: Results) -> str:
    """The cost of the recipe and of rivals at its own budget, a row a kind of text."""
    own = need(only(quality(results), reading="kinds", budget=rivals.BUDGET, base_role="adapted",
                    role=KINDS))  # fmt: skip
    roles = [role for role in KINDS if role in set(own["role"])]
    told = [[str(texts), *(percent(row_of(rows, role=role)) for role in roles)]
            for texts, rows in own.groupby("texts")]  # fmt: skip
    return "\n".join(markdown(["", *(ROLES[role] for role in roles)], told))


def shares(results: Results) -> str:
    """What each costs as more distant pairs are kept, with the share that it kept."""
    own = need(rivals.variants(only(rivals.rows(results), role=SHARES)))
    budgets = sorted({budget for budget in own["budget"] if budget[0].isdigit()}, key=float)
    told = []
    for role in SHARES:
        rows = (row_of(own, role=role, budget=budget) for budget in budgets)
        cells = [NONE if row is None else f"{percent(row)} at {row['distant_density']:.1%}"
                 for row in rows]  # fmt: skip
        told += [[ROLES[role], *cells]] if set(cells) != {NONE} else []
    head = ["", *(f"{100 * float(budget):g}% of the distant pairs" for budget in budgets)]
    return "\n".join(markdown(head, told))


def answers(results: Results) -> tuple[dict[str, pd.Series], int, float | None]:
    """Rows of long-context answers by role, against the adapted model; the length of the prompts,
    the longest that all were asked at; percent that the adapted model finds."""
    frame = tasks(results)
    bases = [cell.name for cell in results.cells.values() if cell.role == "adapted"]
    own = only(frame, task=ALL_TASKS, role=SHOWN, against=bases)
    if own.empty:
        return {}, 0, None
    asked = own.groupby("length")["role"].nunique()
    length = int(asked[asked == asked.max()].index.max())
    own = only(own, length=length).sort_values("points", ascending=False)
    by_role = {row["role"]: row for _, row in own.iterrows()}
    return by_role, length, float(own["base_found"].iloc[0])


def sharing(results: Results) -> str:
    """What groups per head change, beside heavy hitters for every head: a row each measurement."""
    pairs = [("allocated", "heavy_untrained", MAIN_READING),
             ("long_longer_allocated", "long_longer_heavy", LONGEST)]  # fmt: skip
    if not {name for pair in pairs for name in pair[:2]} <= set(results.cells):
        raise Missing
    told = []
    for *names, reading in pairs:
        rows = compared(results, *(results.cells[name] for name in names), reading=reading)
        told += [[f"{int(row['context']):,}", f"{row['distant_density']:.0%}", percent(row)]
                 for _, row in rows.iterrows()]  # fmt: skip
    head = ["tokens", "distant pairs", "groups per head, against the same number for all"]
    return "\n".join(markdown(head, told, "rrr"))
