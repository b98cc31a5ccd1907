"""README's figures, rendered from result files between `<!-- name -->` and `<!-- /name -->`."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd

from analysis import claims, rivals, ruler, tables
from analysis.cells import ROLES
from analysis.comparisons import SAME, Headline, headline, quality, versus
from analysis.results import Results
from analysis.rules import Verdict

# FocusConfig.recipe() at its default: the configuration whose speed is timed.
RECIPE = {"K": 18, "top_k": 2, "probe": "multi_probe", "ngram": 3}
MOST_ROWS = 5
MOST_RIVALS = 8
BASES = {"adapted": "the same model under full attention, adapted on the same texts",
         "pretrained": "the pretrained model"}  # fmt: skip
COLUMN = {"adapted": "adapted full attention", "pretrained": "the pretrained model"}
NOTHING = "Not measured yet: `make reproduce` writes the result files that this is made from."
MARKED = re.compile(r"<!-- (\w+) -->\n.*?<!-- /\1 -->", re.S)
HEAD = (
    "| | distant pairs kept | perplexity against {} | against pretrained | "
    "a forward pass | generation | files |\n| --- | ---: | ---: | ---: | ---: | ---: | --- |"
)


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
    """The result against its baselines, in one sentence."""
    known = headline(results)
    if known is None:
        return NOTHING
    row = default_row(results, known)
    beside = against_pretrained(results, known, row)
    text = (
        f"With {row['distant_density']:.1%} of the distant pairs, `{known.cell}` reads "
        f"{int(row['documents'])} test documents (`{row['texts']}`) at a perplexity {percent(row)} "
        f"from that of {BASES[row['base_role']]}"
    )
    if beside is not None:
        text += f", and {percent(beside)} from the pretrained model's"
    seeds = tables.plural(row["seeds"], "seed")
    return f"{text} (95% intervals over documents and {seeds}; [rows]({row['evidence']}))."


def heavy(results: Results) -> str:
    """What the recipe costs beside heavy hitters, on the headline's texts."""
    known, frame = headline(results), quality(results)
    own = known.family.of(frame) if known else frame.head(0)
    own = own[own["role"] == "heavy"].sort_values("distant_density")
    if own.empty:
        return NOTHING
    told = ", ".join(f"{percent(row)} with {row['distant_density']:.1%} of the distant pairs"
                     for _, row in own.iterrows())  # fmt: skip
    share = results.cells[own["cell"].iloc[0]].method["heavy_hitters"]
    seeds = tables.plural(own["seeds"].iloc[0], "seed")
    evidence = own["evidence"].iloc[0]
    return (f"**With heavy hitters**, {share:.0%} of the tokens that every query keeps in sight: "
            f"{told} ({seeds}; [rows]({evidence})).")  # fmt: skip


def table(results: Results) -> str:
    """At most five configurations: quality, density and speed of each in its row."""
    known = headline(results)
    if known is None:
        return NOTHING
    frame = known.family.of(quality(results))
    own, middle = known.rows(frame), default_row(results, known)
    other = frame[(frame["budget"] == middle["budget"]) & (frame["role"] != "ours")]
    beside = frame[frame["role"] == "heavy"].sort_values("distant_density")
    if len(beside):
        own = pd.concat([beside, own[own["budget"] == middle["budget"]]])
    paper = frame[(frame["role"] == "paper") & (frame["top_k"] == 2)]
    paper = paper[paper["balance"] == "sinkhorn"]
    rest = pd.concat([paper.head(1), *(other[other["role"] == r] for r in ("window", "random"))])
    rows = pd.concat([own, rest]).head(MOST_ROWS)
    lines = [_row(results, known, row) for _, row in rows.iterrows()]
    return "\n".join([HEAD.format(COLUMN[middle["base_role"]]), *lines])


def _row(results: Results, known: Headline, row: pd.Series) -> str:
    """A line of the table."""
    default = row["role"] == "ours" and bool(is_recipe(pd.DataFrame([row])).iloc[0])
    name = ROLES.get(row["role"], row["cell"])
    if row["role"] in ("ours", "heavy", "paper"):
        name += f", {tables.plural(row['top_k'], 'group')} a query"
    name = f"**{name}: `FocusConfig.recipe()`**" if default else name
    beside = against_pretrained(results, known, row)
    speeds, files = zip(*(_speed(results, phase, default) for phase in ("forward", "generation")),
                        strict=True)  # fmt: skip
    files = ", ".join([link(row["evidence"]), *(link(each) for each in files if each)])
    values = [name, f"{row['distant_density']:.1%}", percent(row),
              percent(beside) if beside is not None else "", *speeds, files]  # fmt: skip
    return f"| {' | '.join(values)} |"


def _speed(results: Results, phase: str, default: bool) -> tuple[str, str | None]:
    """How many times as fast the whole model is, at the longest length timed, and the file."""
    frame = results.whole
    frame = frame[frame["phase"] == phase] if len(frame) else frame
    if not default or frame.empty:
        return "not timed", None
    row = frame.sort_values("length").iloc[-1]
    kept = f", {row['density']:.0%} of all pairs" if phase == "forward" else ""
    spread = f"{row['speedup_low']:.2f} to {row['speedup_high']:.2f}"
    text = f"{row['speedup']:.2f}x ({spread}) at {int(row['length']):,} tokens{kept}"
    return text, row["evidence"]


def ledger(rows: list[claims.Row]) -> str:
    """How many rows of the ledger have each verdict."""
    totals = claims.totals(rows)
    left = totals.pop(Verdict.NOT_RUN)
    said = ", ".join(f"{count} {verdict}" for verdict, count in totals.items() if count)
    return (f"Of {len(rows)} rows of the [ledger](results/claims.md), {len(rows) - left} were "
            f"judged: {said}; {left} were not run.")  # fmt: skip


def beside(results: Results) -> str:
    """Rivals and ours at the recipe's own budget, the best first."""
    frame = rivals.rows(results)
    own = frame[frame["budget"] == rivals.BUDGET].sort_values("change") if len(frame) else frame
    own = own.drop_duplicates("role")  # a rival's variants stand in the table
    if own.empty:
        return NOTHING
    said = ", ".join(f"{ROLES.get(row['role'], row['cell'])} {percent(row)}"
                     for _, row in own.head(MOST_RIVALS).iterrows())  # fmt: skip
    books, kept = int(own["documents"].max()), own["distant_density"].median()
    return (f"On one window of {books} of these books, with about {kept:.0%} of the distant pairs, "
            f"against the adapted model: {said} ([table](results/tables/rivals.csv)).")  # fmt: skip


def answers(results: Results) -> str:
    """What masks lose of long-context tasks at their longest, the best first."""
    frame = ruler.table(results)
    every = frame[(frame["task"] == ruler.EVERY) & frame["role"].isin(ruler.SHOWN)]
    based = every["against"].map(lambda name: results.cells[name].role) == "adapted"
    own = every[based].sort_values("points", ascending=False)
    own = own[own["length"] == own["length"].max()]
    if own.empty:
        return NOTHING
    said = ", ".join(
        f"{ROLES[row['role']]} {row['points']:+.1f} points ({row['points_low']:.1f} to "
        f"{row['points_high']:.1f})" for _, row in own.iterrows()
    ).replace("-", "−")  # fmt: skip
    first = own.iloc[0]
    return (f"**What perplexity hides.** Of {int(first['questions'])} long-context questions over "
            f"{int(first['length']):,} tokens the adapted model finds the answer of "
            f"{first['base_found']:.0f}%. With about {own['distant_density'].median():.0%} of the "
            f"distant pairs: {said} ([figure](results/figures/ruler.png)).")  # fmt: skip


def blocks(results: Results, rows: list[claims.Row]) -> dict[str, Callable[[], str]]:
    """What can stand between markers, by name."""
    return {
        "headline": lambda: sentence(results),
        "heavy": lambda: heavy(results),
        "results": lambda: table(results),
        "rivals": lambda: beside(results),
        "answers": lambda: answers(results),
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
