"""docs/findings.md, and lines of README: sentences stand in templates beside this file, their
figures come from result files.

A sentence that says which way a figure goes asks for it by a filter that refuses the other way
(`above`, `below`, `cost`, `costs`, `gain`, `lost`, `level`, `none`, `sure`, `unsure`), so that no
page can say what its figures do not.
"""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pandas as pd
from jinja2 import Environment, StrictUndefined

from analysis import claims, ladder, tables
from analysis.results import Results
from analysis.rows import Missing, ends_of, need, only
from analysis.rules.lora import rate_of
from analysis.rules.table7 import paper_way
from analysis.words import NONE, between, percent, plain, plural, pointed

Rows = TypeVar("Rows", pd.Series, pd.DataFrame)

SOURCE = "findings.md.jinja"
MARK = "| "  # of a line of a table: what is claimed, what was seen, where to look
NAMES = {
    "one": "k1.symmetric.sinkhorn", "two": "k2.symmetric.sinkhorn",  # budgets of the paper's setup
    "lora": "lora4_steps-learning_rate0.0001",  # of the paper's Table 4
    "gentle": "lora4_steps-learning_rate1e-05",
    "tried": ["softmax", "softmax_x5", "stop_gradient", "ema", "recluster"],  # by the paper
}  # fmt: skip


def page(results: Results, rows: list[claims.Row]) -> str:
    """The page. A line whose results are not there says so.

    Raises:
        ValueError: a figure that goes the other way than its sentence says, or that several rows
            of a table could be.
    """
    made = environment(results, rows)
    return "\n".join(line(made, text) for text in source(SOURCE).split("\n"))


def told(results: Results, name: str) -> str:
    """The lines of another template, for another page; one without its results is left out."""
    made, lines = environment(results, []), []
    for text in source(f"{name}.md.jinja").splitlines():
        with suppress(Missing):
            lines.append(made.from_string(text).render())
    return "\n".join(need(lines))


def environment(results: Results, rows: list[claims.Row]) -> Environment:
    """What sentences are rendered with."""
    made = Environment(undefined=StrictUndefined, autoescape=True)
    made.filters |= {each.__name__: each for each in FILTERS}
    made.filters |= {"change": percent, "points": pointed, "gain": gain, "lost": lost}
    made.globals |= {**NAMES, **found(results, rows)}
    return made


def source(name: str) -> str:
    """The text of a template beside this file."""
    return Path(__file__).with_name(name).read_text(encoding="utf-8")


def line(made: Environment, text: str) -> str:
    """One line with its figures."""
    try:
        return made.from_string(text).render()
    except Missing:
        if not text.startswith(MARK):
            title, _, _ = text.partition("** ")
            return f"{title}** {NONE} not measured."
        first, *_, last = text.removeprefix(MARK).split(" | ")
        return f"{MARK}{first} | {NONE} not measured | {last}"


def found(results: Results, ledger: list[claims.Row]) -> dict[str, Any]:
    """What a line can ask for: rows of the tables below results/tables."""

    def rows(name: str, **wanted: Any) -> pd.DataFrame:
        return need(only(need(tables.table(results, name)), **wanted))

    def row(name: str, **wanted: Any) -> pd.Series:
        own = rows(name, **wanted)
        if len(own) > 1:
            raise ValueError(f"findings: {len(own)} rows of {name} have {wanted}; say which")
        return own.iloc[0]

    def claim(name: str) -> pd.Series:
        own = [each for each in ledger if each["id"] == name and each["ours"] is not None]
        return pd.Series(need(own)[0])

    return {
        "rows": rows,
        "row": row,
        "claim": claim,
        **places(results, row),
        "forecast": partial(foretold, results),
        "moved": partial(moved, row),
        "worse_layers": partial(worse_layers, rows),
    }


def places(results: Results, row: Any) -> dict[str, Any]:
    """Rows that several lines ask for, by what differs."""
    return {
        "books": lambda cell, budget="0.125", against="adapted": row(
            "quality", cell=cell, reading="final", texts="unseen", budget=budget, against=against),
        "rival": lambda cell: row(
            "quality", cell=cell, reading="rivals", budget="0.125", base_role="adapted"),
        "asked": lambda name, length=2048: row(
            "ruler", cell=f"ruler_{name}", task="all tasks", length=length,
            against="ruler_adapted"),
        "score": lambda cell, reading="benchmarks", against="answers_pretrained", texts="all four":
            row("benchmarks", cell=cell, reading=reading, against=against, texts=texts),
        "rank16": lambda: rate_of(results, "lora16_steps").name,  # best on validation plays
        "longest": lambda cell: row("lengths", cell=cell, context=8192),
        "attention": lambda method, length, groups, kept: row(
            "speed", whose="ours", direction="forward", device="cpu", method=method, length=length,
            K=groups, k=kept, probe="symmetric"),
        "on_gpu": lambda method, length, heads=12: row(
            "speed", whose="ours", direction="forward", device="cuda", method=method, length=length,
            K=8, k=1, heads=heads, hardware=need(results.gpu)[0]["hardware"]),
        "beside_fastest": lambda method, length: beside_fastest(row, results, method, length),
        "gate": lambda reading, condition="soft", budget="own": row(
            "quality", cell=paper_way(results, 2)["cell"], reading=reading,
            condition=condition, budget=budget, base_role="pretrained"),
        "tuned": lambda texts, condition="soft": row(
            "finetuning", weights="fine-tuned", steps=4000, method="focus", texts=texts,
            condition=condition),
        "sinks": lambda count: row(
            "quality", cell=f"search_sinks-sinks{count}", budget="0.125", against="plays_recipe"),
        "answers": lambda cell, before=1024: value(
            row("chat", cell=cell, before=before), "divergence", 2),
        "copied": lambda **wanted: row(
            "induction", **{"cell": "copies", "layer": "all", "ngram": 0} | wanted),
        "linked": lambda link, cell="copies": row(
            "affinity", cell=cell, link=link, layer="all", ngram=0),
    }  # fmt: skip


def beside_fastest(row: Any, results: Results, method: str, length: int) -> str:
    """A method's speed beside the fastest kernel of full attention on a GPU, K = 8."""
    known = {"whose": "ours", "direction": "forward", "length": length, "heads": 12,
             "hardware": need(results.gpu)[0]["hardware"]}  # fmt: skip
    full = row("speed", method="full_other", **known)
    own = row("speed", method=method, K=8, **known)
    return f"{full['median_s'] / own['median_s']:.1f}"


def foretold(results: Results, budget: str) -> str:
    """What the ladder foretold of 135M parameters, in percent."""
    told, low, high = need(ladder.gap(results, budget)).at(ladder.AHEAD["135M"])
    return f"{told:.1f}% ({plain(low, 0)} to {plain(high, 0)})"


def moved(row: Any, measure: str) -> str:
    """A movement of the groups under Sinkhorn, beside a plain softmax trained as long."""
    own, theirs = (row("stability", cell=cell)[measure]
                   for cell in ("steady", "steady_softmax-mitigationnone"))  # fmt: skip
    return f"{own / theirs:.1f}"


def worse_layers(rows: Any) -> str:
    """How many layers' groups tell parts of speech worse than k-means, of all."""
    own = rows("contents", by="kmeans")
    own = own[own["layer"].astype(str) != "all"]
    return f"{(own['ours_more'] < 0).sum()} of {len(own)}"


def cost(row: pd.Series, digits: int = 1, ends: bool = False, column: str = "change", sign: int = 1,
         scale: float = 100, unit: str = "%") -> str:  # fmt: skip
    """A perplexity that rises; or another figure that goes the way of the sign."""
    number = sign * scale * float(row[column])
    if number < 0:
        raise ValueError(f"findings: {column} of {row.get('cell')} is {scale * row[column]:+.2f}; "
                         "the sentence says the opposite")  # fmt: skip
    text = f"{number:.{digits}f}{unit}"
    return f"{text} {between(row, column, digits, sign * scale)}" if ends else text


gain = partial(cost, sign=-1)  # a perplexity that falls
lost = partial(cost, column="points", sign=-1, scale=1, unit=" points")  # of a score


def level(row: pd.Series) -> str:
    """A score whose change cannot be told from none."""
    low, high = (row[name] for name in ends_of(row, "points"))
    if not low <= 0 <= high:
        raise ValueError(f"findings: points of {row.get('cell')} are not level")
    return f"nothing significant {between(row, 'points')}"


def none(row: pd.Series, column: str) -> str:
    """A share that is zero."""
    if row[column] != 0:
        raise ValueError(f"findings: {column} of {row.get('cell')} is {row[column]}, not zero")
    return "none"


def share(row: pd.Series, column: str = "distant_density", ends: bool = False) -> str:
    """A share in percent."""
    return f"{100 * row[column]:.0f}%" + (f" {between(row, column, 0, 100)}" if ends else "")


def value(row: pd.Series, column: str, digits: int) -> str:
    """A figure as it stands."""
    return plain(row[column], digits)


def times(row: pd.Series) -> str:
    """A ratio of times."""
    return f"{row['speedup']:.1f} times"


def above(row: pd.Series, other: pd.Series) -> pd.Series:
    """A row whose perplexity rises more than another's."""
    if row["change"] <= other["change"]:
        raise ValueError(f"findings: {row['cell']} costs no more than {other['cell']}")
    return row


def below(row: pd.Series, column: str, limit: float) -> pd.Series:
    """A row of which a figure lies below a limit with its whole interval."""
    if row[ends_of(row, column)[1]] >= limit:
        raise ValueError(f"findings: {column} of {row.get('cell')} is not surely below {limit:g}")
    return row


def sure(row: pd.Series, column: str) -> pd.Series:
    """A row of which a difference lies above zero with its whole interval."""
    if row[ends_of(row, column)[0]] <= 0:
        raise ValueError(f"findings: {column} of {row.get('cell')} is not surely above zero")
    return row


def unsure(rows: Rows, column: str) -> Rows:
    """A row, or several, of which none does."""
    if np.any(rows[ends_of(rows, column)[0]] > 0):
        raise ValueError(f"findings: {column} is surely above zero")
    return rows


def rest(row: pd.Series, column: str) -> str:
    """What a percentage leaves of the whole, with its interval."""
    left, high, low = (100 - row[name] for name in (column, *ends_of(row, column)))
    return f"{left:.0f}% ({low:.0f} to {high:.0f})"


def costs(rows: pd.DataFrame, digits: int = 1) -> str:
    """Perplexities of which none falls, from the least to the greatest."""
    cost(rows.loc[rows["change"].idxmin()])
    return span(rows, digits=digits)


def span(rows: pd.DataFrame, column: str = "change", digits: int = 1, scale: float = 100,
         unit: str = "%") -> str:  # fmt: skip
    """The least and the greatest of several."""
    low, high = (plain(scale * float(each), digits) for each in rows[column].agg(["min", "max"]))
    return f"{low}{unit}" if low == high else f"{low} to {high}{unit}"


FILTERS = (above, below, between, cost, costs, level, none, plural, rest, share, span, sure, times,
           unsure, value)  # fmt: skip
