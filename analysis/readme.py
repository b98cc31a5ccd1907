"""README's figures, rendered from result files between `<!-- name -->` and `<!-- /name -->`."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pandas as pd

from analysis import claims, lengths, rivals, ruler, tables
from analysis.cells import ROLES
from analysis.comparisons import SAME, Headline, headline, quality, versus
from analysis.results import Results
from analysis.rules import Verdict

# FocusConfig.recipe() at its default: the configuration whose speed is timed.
RECIPE = {"K": 18, "top_k": 2, "probe": "multi_probe", "ngram": 3}
MOST_ROWS = 5
LEFT_OUT = ("longer", "longer_heavy", "heavy", "masked")
ADDED = ("allocated", "longer_allocated")  # roles: the recipe, and more
MOST_RIVALS = 9
LONGEST = "long_8192"  # the reading of the longest texts
NONE = "–"  # of a cell that was not measured
BASES = {
    "adapted": "full attention adapted to the same texts",
    "pretrained": "the pretrained model",
}
TEXTS = {"unseen": "unseen books"}
NOTHING = "Not measured yet: `make reproduce` writes the result files that this is made from."
MARKED = re.compile(r"<!-- (\w+) -->\n.*?<!-- /\1 -->", re.S)
HEAD = "| | distant pairs | against {} | against pretrained | {} | {} | rows |\n| --- {}|"


def percent(row: Any) -> str:
    """A change with its interval."""
    low, high = f"{100 * row['low']:.1f}", f"{100 * row['high']:.1f}"
    return f"{100 * row['change']:+.1f}% ({low} to {high})".replace("-", "−")


def link(evidence: str) -> str:
    """A link to a file by the name of its folder."""
    return f"[{Path(evidence).parent.name}]({evidence})"


def is_recipe(rows: pd.DataFrame) -> pd.Series:
    """Which rows have the mask of FocusConfig.recipe() at its default."""
    return (rows[list(RECIPE)] == list(RECIPE.values())).all(axis=1)


def default_row(results: Results, known: Headline) -> pd.Series:
    """The headline's row under the recipe's default mask, or else at its middle budget."""
    own = known.rows(quality(results))
    same = own[is_recipe(own)]
    return same.iloc[0] if len(same) else own.iloc[(len(own) - 1) // 2]


def against_pretrained(results: Results, known: Headline, row: pd.Series) -> dict[str, Any] | None:
    """The same mask on the same texts, against the pretrained model; None where that is what it is
    counted against anyway."""
    if known.pretrained in (None, row["against"]):
        return None
    base = results.cells[known.pretrained]
    every = versus(results, results.cells[row["cell"]], base)
    return next((each for each in every if all(each[name] == row[name] for name in SAME)), None)


def sentence(results: Results) -> str:
    """The recipe's cost, and what calibration and more steps leave of it: a sentence each."""
    known = headline(results)
    if known is None:
        return NOTHING
    row = default_row(results, known)
    books, seeds = int(row["documents"]), tables.plural(row["seeds"], "seed")
    read = f"{books} {TEXTS.get(row['texts'], row['texts'])}"
    text = (f"Keeping {row['distant_density']:.1%} of the distant pairs, `FocusConfig.recipe()` "
            f"changes perplexity on {read} by **{percent(row)}** against "
            f"{BASES[row['base_role']]}.")  # fmt: skip
    beside = better(results, known, row)
    if "allocated" in beside.index:
        found = beside.loc["allocated"]
        text += (f" Calibrated, which trains nothing, it is **{percent(found)}** with "
                 f"{found['distant_density']:.1%}{unless(found, seeds)}.")  # fmt: skip
    if "longer_allocated" in beside.index:
        found = beside.loc["longer_allocated"]
        text += (f" After three times the training steps that is **{percent(found)}**"
                 f"{unless(found, seeds)}.")  # fmt: skip
    return f"{text} Intervals are 95%, over documents and {seeds}."


def unless(row: pd.Series, seeds: str) -> str:
    """How many seeds a figure rests on, where that is not what the others do."""
    own = tables.plural(row["seeds"], "seed")
    return "" if own == seeds else f" ({own})"


def better(results: Results, known: Headline, default: pd.Series) -> pd.DataFrame:
    """What was added to the recipe, on the headline's texts and at its default budget, by role."""
    own = known.family.of(quality(results))
    own = own[own["role"].isin(ADDED) & (own["budget"] == default["budget"])]
    place = own["role"].map(list(ADDED).index)
    return own.assign(place=place).sort_values("place").set_index("role", drop=False)


def table(results: Results) -> str:
    """At most five configurations: quality, density and speed of each in its row."""
    known = headline(results)
    if known is None:
        return NOTHING
    frame = known.family.of(quality(results))
    own, middle = known.rows(frame), default_row(results, known)
    other = frame[(frame["budget"] == middle["budget"]) & (frame["role"] != "ours")]
    beside = better(results, known, middle)
    if len(beside):
        own = pd.concat([own[own["budget"] == middle["budget"]], beside])
    paper = frame[(frame["role"] == "paper") & (frame["top_k"] == 2)]
    paper = paper[paper["balance"] == "sinkhorn"]
    window, random = (other[other["role"] == role] for role in ("window", "random"))
    rest = pd.concat([window, paper.head(1), random])
    rows = pd.concat([own, rest]).head(MOST_ROWS)
    phases = [timed(results, phase) for phase in ("forward", "generation")]
    heads = [phase if row is None else f"{phase}, {int(row['length']):,} tokens"
             for phase, row in zip(("forward", "generation"), phases, strict=True)]  # fmt: skip
    head = HEAD.format(middle["base_role"], *heads, "| ---: " * 5 + "| --- ")
    return "\n".join([head, *(_row(results, known, row, phases) for _, row in rows.iterrows())])


def timed(results: Results, phase: str) -> pd.Series | None:
    """The whole model's time by the recipe at the longest length, None where it was not timed."""
    frame = results.whole
    frame = frame[frame["phase"] == phase] if len(frame) else frame
    return None if frame.empty else frame.sort_values("length").iloc[-1]


def _row(results: Results, known: Headline, row: pd.Series,
         phases: Iterable[pd.Series | None]) -> str:  # fmt: skip
    """A line of the table."""
    default = row["role"] == "ours" and bool(is_recipe(pd.DataFrame([row])).iloc[0])
    name = ROLES.get(row["role"], row["cell"])
    if row["role"] in ("ours", *ADDED, "paper"):
        name += f" ({int(row['top_k'])} of {int(row['K'])})"
    name = f"**{name}** (`FocusConfig.recipe()`)" if default else name
    beside = against_pretrained(results, known, row)
    speeds = [NONE if each is None or not default else faster(each) for each in phases]
    second = NONE if beside is None else percent(beside)
    values = [name, f"{row['distant_density']:.1%}", percent(row), second, *speeds,
              link(row["evidence"])]  # fmt: skip
    return f"| {' | '.join(values)} |"


def faster(row: pd.Series) -> str:
    """How many times as fast as the pretrained model, and the file."""
    spread = f"{row['speedup_low']:.1f} to {row['speedup_high']:.1f}"
    return f"[{row['speedup']:.1f}x]({row['evidence']}) ({spread})"


def ledger(rows: list[claims.Row]) -> str:
    """How many rows of the ledger have each verdict."""
    totals = claims.totals(rows)
    left = totals.pop(Verdict.NOT_RUN)
    said = ", ".join(f"{count} {verdict}" for verdict, count in totals.items() if count)
    return (f"Of {len(rows)} rows of the [ledger](results/claims.md), {len(rows) - left} were "
            f"judged: {said}; {left} were not run.")  # fmt: skip


def beside(results: Results) -> str:
    """Rivals and ours at the recipe's own budget, the best first: what each costs and loses."""
    frame = rivals.rows(results)
    own = frame[frame["budget"] == rivals.BUDGET].sort_values("change") if len(frame) else frame
    # A rival's variants, and most of ours, stand in the table alone.
    own = own[~own["role"].isin(LEFT_OUT)].drop_duplicates("role").head(MOST_RIVALS)
    if own.empty:
        return NOTHING
    lost, length, full = answers(results)
    found = f"answers, {length:,} tokens" if length else "long-context answers"
    lines = [f"| | distant pairs | computed to choose keys | perplexity | {found} |",
             "| --- | ---: | --- | ---: | ---: |"]  # fmt: skip
    if full is not None:
        lines.append(f"| full attention, adapted | 100% | {NONE} | 0 | {full:.0f}% found |")
    for _, row in own.iterrows():
        about = rivals.ABOUT.get(row["role"])
        chosen = about.scores if about else "each token with each centroid"
        name = ROLES.get(row["role"], row["cell"])
        lines.append(f"| {name} | {row['distant_density']:.1%} | {chosen} | {percent(row)} | "
                     f"{lost.get(row['role'], (0, NONE))[1]} |")  # fmt: skip
    lines += [f"| {ROLES[role]} | {kept:.1%} | {NONE} | {NONE} | {told} |"
              for role, (kept, told) in lost.items() if role == "window"]  # fmt: skip
    return "\n".join(lines)


def pointed(row: Any) -> str:
    """A difference in points with its interval."""
    low, high = f"{row['points_low']:.1f}", f"{row['points_high']:.1f}"
    return f"{row['points']:+.1f} points ({low} to {high})".replace("-", "−")


def failed(results: Results) -> str:
    """What did not work, with the figures of the files that tell."""
    known = headline(results)
    if known is None:
        return NOTHING
    frame = known.family.of(quality(results))
    found = [paper(frame), quarter(frame, known), *longer(results), sharing(results, known)]
    return "\n".join(f"- {each}" for each in found if each) or NOTHING


def paper(frame: pd.DataFrame) -> str | None:
    """The paper's own mask on the headline's texts."""
    own = frame[(frame["role"] == "paper") & (frame["balance"] == "sinkhorn")]
    own = own.set_index("top_k")
    if not {1, 2} <= set(own.index):
        return None
    return (f"**The paper's method.** Two of four groups cost {percent(own.loc[2])} and keep "
            f"{own.loc[2, 'distant_density']:.0%} of the distant pairs. One group costs "
            f"{own.loc[1, 'change']:+.0%}.")  # fmt: skip


def quarter(frame: pd.DataFrame, known: Headline) -> str | None:
    """Trained groups beside a wider window at the largest budget that both were read at."""
    ours, window = known.rows(frame), frame[frame["role"] == "window"]
    shared = sorted(set(ours["budget"]) & set(window["budget"]), key=float)
    if not shared:
        return None
    own, theirs = (each[each["budget"] == shared[-1]].iloc[0] for each in (ours, window))
    if own["change"] <= theirs["change"]:
        return None
    return (f"**More groups.** At {own['distant_density']:.0%} of the distant pairs ours cost "
            f"{percent(own)}, and a wider window with n-gram keys {percent(theirs)}.")  # fmt: skip


def longer(results: Results) -> list[str]:
    """What groups alone cost on the longest texts, and what calibration and more steps leave."""
    frame = lengths.table(results)
    own = frame[frame["context"] == frame["context"].max()].set_index("cell")
    if not {"long_recipe", "long_longer_allocated"} <= set(own.index):
        return []
    one, other = own.loc["long_recipe"], own.loc["long_longer_allocated"]
    return [f"**Groups alone on long texts.** They lose the few tokens that nearly every query "
            f"attends to. At {int(one['context']):,} tokens they cost {percent(one)}; "
            f"calibrated, after 3x steps, {percent(other)} "
            "([figure](results/figures/lengths.png))."]  # fmt: skip


def sharing(results: Results, known: Headline) -> str | None:
    """What it changes that heads share their groups, beside heavy hitters for every head."""
    pairs = [("allocated", "heavy_untrained", known.family.reading),
             ("long_longer_allocated", "long_longer_heavy", LONGEST)]  # fmt: skip
    if not {name for pair in pairs for name in pair[:2]} <= set(results.cells):
        return None
    told = []
    for *names, reading in pairs:
        one, other = (results.cells[name] for name in names)
        rows = [row for row in versus(results, one, other) if row["reading"] == reading]
        row = min(rows, key=lambda row: row["distant_density"])
        told.append(f"{percent(row)} at {int(row['context']):,} tokens")
    return (f"**Groups shared among heads.** Against heavy hitters alone they change perplexity by "
            f"{' and '.join(told)}.")  # fmt: skip


def answers(results: Results) -> tuple[dict[str, tuple[float, str]], int, float | None]:
    """By role, the share of the distant pairs kept and the points of long-context answers lost
    against the adapted model; the length of the prompts, the longest that all were asked at;
    percent that the adapted model finds."""
    frame = ruler.table(results)
    every = frame[(frame["task"] == ruler.EVERY) & frame["role"].isin(ruler.SHOWN)]
    based = every["against"].map(lambda name: results.cells[name].role) == "adapted"
    own = every[based]
    if own.empty:
        return {}, 0, None
    asked = own.groupby("length")["role"].nunique()
    length = int(asked[asked == asked.max()].index.max())
    own = own[own["length"] == length].sort_values("points", ascending=False)
    told = {row["role"]: (row["distant_density"], pointed(row)) for _, row in own.iterrows()}
    return told, length, float(own["base_found"].iloc[0])


def blocks(results: Results, rows: list[claims.Row]) -> dict[str, Callable[[], str]]:
    """What can stand between markers, by name."""
    return {
        "headline": lambda: sentence(results),
        "results": lambda: table(results),
        "rivals": lambda: beside(results),
        "failed": lambda: failed(results),
        "ledger": lambda: ledger(rows),
    }


def rendered(text: str, results: Results, rows: list[claims.Row]) -> str:
    """A text with everything between markers written anew.

    Raises:
        ValueError: a marker that nothing is known for, or that has no end.
    """
    known = blocks(results, rows)
    opened = re.findall(r"<!-- (\w+) -->", text)
    ended = {match[1] for match in MARKED.finditer(text)}
    for name in opened:
        if name not in known or name not in ended:
            what = "has no end" if name in known else f"is unknown; there are {', '.join(known)}"
            raise ValueError(f"README marker {name!r}: {what}")
    return MARKED.sub(lambda m: f"<!-- {m[1]} -->\n{known[m[1]]()}\n<!-- /{m[1]} -->", text)


def write(path: Path, results: Results, rows: list[claims.Row]) -> Path:
    """Renders a file in place."""
    text = path.read_text(encoding="utf-8")
    path.write_text(rendered(text, results, rows), encoding="utf-8")
    return path
