"""The central table: what every experiment costs or gains against the others that it names, on the
documents that both were read on, with intervals over seeds and documents."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import wraps
from typing import Any

import numpy as np
import pandas as pd

from analysis.cells import Cell
from analysis.results import Results, reading_of
from analysis.rows import Missing, Table, columns, need, only, row_of, tabled
from experiments import statistics

COLUMNS = (
    "experiment", "cell", "role", "reading", "texts", "condition", "budget", "against",
    "base_role", "change", "low", "high", "seeds", "documents", "distant_density", "density",
    "base_distant_density", "ppl", "base_ppl", "K", "top_k", "probe", "ngram", "window", "sinks",
    "balance", "model", "context", "final", "formats", "evidence",
)  # fmt: skip
SAME = ["reading", "texts", "cell", "condition", "budget"]
MASK = ("K", "top_k", "probe", "ngram", "window", "sinks", "balance")
PAIRED = ["document", "sha", "tokens"]
FEWEST = 2  # documents of an interval
# Whose figures open README and the report: the first that has been read.
HEADLINES = ("recipe", "plays_recipe")
MAIN_READING = "final"


@tabled(*COLUMNS)
def quality(results: Results) -> list[dict[str, Any]]:
    """A row a cell, reading, texts, budget and experiment that it is compared with."""
    return pairs(results, versus)


def pairs(results: Results, compared: Callable[[Results, Cell, Cell], Iterable[dict[str, Any]]]
          ) -> list[dict[str, Any]]:  # fmt: skip
    """Rows of every cell against each that it is compared with."""
    return [row for cell in results.cells.values() for base in bases(results, cell)
            for row in compared(results, cell, base)]  # fmt: skip


def paired(compared: Callable[[Results, Cell, Cell], Iterable[dict[str, Any]]]) -> Table:
    """Makes a function that compares one cell with another the table of all that are compared."""
    return tabled()(wraps(compared)(lambda results: pairs(results, compared)))


def bases(results: Results, cell: Cell) -> Iterator[Cell]:
    """The cells of the same model that a cell is compared with: of a swept experiment that at the
    same point, where there is one."""
    for name in cell.against:
        every = [base for base in results.cells.values() if base.block == name
                 and base.name != cell.name and base.model == cell.model]  # fmt: skip
        yield from [base for base in every if base.point and base.point == cell.point] or every


def versus(results: Results, cell: Cell, base: Cell) -> Iterator[dict[str, Any]]:
    """Rows of the central table: ``cell`` at all its readings and budgets, against ``base``.

    A base of full attention has one loss a document, with which every budget is compared; another
    one is compared at the same budget.
    """
    theirs = results.rows_of(base.name)
    for key, own in results.rows_of(cell.name).groupby(SAME, sort=False):
        found = dict(zip(SAME, key, strict=True))
        same = only(theirs, reading=found["reading"], texts=found["texts"])
        if "full" not in set(same["condition"]):
            same = only(same, budget=found["budget"], condition=found["condition"])
        own, same = in_common(own, same)
        if own["sha"].nunique() < FEWEST:
            continue
        yield beside(results, cell, own, same) | {
            **found, "against": base.name, "base_role": base.role,
        }  # fmt: skip


def compared(results: Results, cell: Cell, base: Cell, /, **wanted: Any) -> pd.DataFrame:
    """Rows of :func:`versus` that have these values."""
    return only(pd.DataFrame(versus(results, cell, base), columns=list(COLUMNS)), **wanted)


def beside(results: Results, cell: Cell, own: pd.DataFrame, base: pd.DataFrame) -> dict[str, Any]:
    """A cell's rows of one condition, and what they cost against others of the same documents."""
    return described(results, cell, own) | {
        **change(own, base, results.confidence), "base_ppl": perplexity(base),
        "base_distant_density": float(base["distant_density"].mean()),
        "formats": formats(results, own, base),
    }  # fmt: skip


def formats(results: Results, own: pd.DataFrame, base: pd.DataFrame) -> str:
    """In which number formats two were read, in words, where a processor without bfloat16 read one
    of them: the adapted model's perplexity is 0.1% lower in float32. Empty where it is one."""
    one, other = (results.run_of(rows["evidence"].iloc[0]).get("dtype") for rows in (own, base))
    return "" if one == other else f"{one} against {other}"


def overall(results: Results, name: str, base: str, reading: str) -> pd.Series:
    """``name`` against ``base`` over all kinds of text of a reading of one budget, as a row of the
    central table; Missing where either was not read."""
    if not {name, base} <= set(results.cells):
        raise Missing
    own, same = (only(results.rows_of(each), reading=reading) for each in (name, base))
    own, same = in_common(need(own), need(same))
    found = beside(results, results.cells[name], need(own), same)
    return pd.Series(found | {"against": base, "texts": list(dict.fromkeys(own["texts"]))})


def in_common(one: pd.DataFrame, other: pd.DataFrame) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Rows of the documents that both were read on, token for token."""
    first, second = (list(zip(*(each[name] for name in PAIRED), strict=True))
                     for each in (one, other))  # fmt: skip
    both = set(first) & set(second)
    return one[[each in both for each in first]], other[[each in both for each in second]]


def change(ours: pd.DataFrame, base: pd.DataFrame, confidence: float) -> dict[str, Any]:
    """Relative change of perplexity, with its interval over seeds and documents."""
    found = statistics.paired_change(ours, base, confidence)
    return {**columns(found, "change"), "documents": found.documents, "seeds": found.seeds}


def described(results: Results, cell: Cell, rows: pd.DataFrame) -> dict[str, Any]:
    """What rows of one condition have in common, and the mean share of pairs that was counted."""
    first, reading = rows.iloc[0], reading_of(results.run_of(rows["evidence"].iloc[0]))
    return {
        "experiment": cell.block, "cell": cell.name, "role": cell.role, "model": cell.model,
        "ppl": perplexity(rows), **{name: first[name] for name in MASK},
        **{name: float(rows[name].mean()) for name in ("density", "distant_density")},
        "context": reading.get("context"), "final": bool(reading.get("final")),
        "evidence": first["evidence"],
    }  # fmt: skip


def perplexity(rows: pd.DataFrame) -> float:
    """Over all tokens of all documents and seeds."""
    return float(np.exp(rows["nll"].sum() / rows["tokens"].sum()))


def best(results: Results, cells: Iterable[str]) -> Cell:
    """Of these cells the one that costs least on validation documents, as it was trained."""
    own = only(results.rows, cell=list(cells), condition=["full", "soft"])
    opened = {file: reading_of(results.run_of(file)).get("final") for file in set(own["evidence"])}
    own = need(own[~own["evidence"].map(opened).astype(bool)])
    costs = own.groupby("cell")[["nll", "tokens"]].sum()  # a token: seeds may differ in number
    return results.cells[str((costs["nll"] / costs["tokens"]).idxmin())]


def against_full(frame: pd.DataFrame) -> pd.DataFrame:
    """Hard masks, each against the first full model that its experiment names."""
    full = only(frame, base_role=["adapted", "pretrained"], condition="hard")
    return full.drop_duplicates(SAME)


@dataclass(frozen=True)
class Headline:
    """The experiment that opens README and the report, and what it stands beside: masks on one kind
    of text in one reading, against one full model."""

    cell: str
    reading: str
    texts: str
    against: str
    pretrained: str | None

    def masks(self, frame: pd.DataFrame) -> pd.DataFrame:
        """Rows of the central table that stand side by side."""
        return only(frame, reading=self.reading, texts=self.texts, condition="hard",
                    against=self.against)  # fmt: skip

    def rows(self, frame: pd.DataFrame) -> pd.DataFrame:
        """Its own budgets, by density."""
        return only(self.masks(frame), cell=self.cell).sort_values("distant_density")


def headline(results: Results) -> Headline:
    """The first of :func:`headlines`, Missing where no groups were trained and read."""
    return need(headlines(results))[0]


def headlines(results: Results) -> list[Headline]:
    """Those of :data:`HEADLINES` that were read, or else the first that trains groups."""
    ours = only(against_full(quality(results)), role=["ours", "groups"])
    read = list(dict.fromkeys(ours["experiment"]))
    names = [name for name in HEADLINES if name in read] or read[:1]
    return [_headline(results, only(ours, experiment=name)) for name in names]


def _headline(results: Results, own: pd.DataFrame) -> Headline:
    """Where one experiment is shown: in its main reading, or the one of most documents."""
    main = own["reading"] == MAIN_READING
    first = own.assign(main=main).sort_values(["main", "documents"], ascending=False,
                                              kind="stable").iloc[0]  # fmt: skip
    against = results.cells[first["cell"]].against
    full = (cell.name for cell in results.cells.values()
            if cell.role == "pretrained" and cell.block in against)  # fmt: skip
    return Headline(*first[["cell", "reading", "texts", "against"]], next(full, None))


def above(results: Results, known: Headline) -> pd.Series | None:
    """The pretrained model against the headline's base, None where it is that or was not read."""
    ours, base = (results.cells.get(name or "") for name in (known.pretrained, known.against))
    if ours is None or base is None or ours.name == base.name:
        return None
    return row_of(compared(results, ours, base, reading=known.reading, texts=known.texts))
