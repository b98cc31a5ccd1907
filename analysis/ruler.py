"""Long-context tasks: what the right answers cost under a mask, paired by question."""

from __future__ import annotations

from functools import cache
from typing import Any

import pandas as pd

from analysis.cells import Cell
from analysis.comparisons import pairs
from analysis.results import Results
from analysis.rows import columns, only, wide
from experiments import statistics

QUESTION = ["texts", "document", "sha"]
KEY = ["length", "condition", "budget"]
EVERY = "all tasks"
# Roles, in README and, as far as an eye keeps lines apart, in the figure.
SHOWN = (
    "ours", "ours_last", "sparq", "quest", "window", "allocated", "allocated_last",
    "longer_allocated", "sparq_groups", "heavy_window", "paper",
)  # fmt: skip
COLUMNS = [
    "experiment", "cell", "role", "task", "length", "budget", "against", "questions", "seeds",
    "found", "base_found", "points", "points_low", "points_high", "nats", "low", "high",
    "distant_density", "base_distant_density", "evidence",
]  # fmt: skip


@cache
def table(results: Results) -> pd.DataFrame:
    """A row a cell, budget, length, task (and all together) and base: answers found (percent) and
    their difference in points; nats per token of the right answers above the base's. A base under a
    mask is taken at the same budget. Intervals over questions."""
    return pd.DataFrame(pairs(results, versus), columns=COLUMNS)


def versus(results: Results, cell: Cell, base: Cell) -> list[dict[str, Any]]:
    """Rows of one cell against another."""
    frame = results.readings["ruler"]
    own, theirs = (only(frame, cell=each.name) for each in (cell, base))
    rows = []
    for (length, _, budget), ours in own.groupby(KEY, sort=False):
        same = theirs[theirs["length"] == length]
        same = same[(same["condition"] == "full") | (same["budget"] == budget)]
        both = ours.merge(same, on=QUESTION, suffixes=("", "_base"))
        for task, asked in [(EVERY, both), *both.groupby("texts", sort=False)]:
            if len(asked) > 1:
                known = {"experiment": cell.block, "cell": cell.name, "role": cell.role,
                         "task": task, "length": int(length), "budget": budget,
                         "against": base.name}  # fmt: skip
                rows.append(known | compared(asked, results.confidence))
    return rows


def compared(both: pd.DataFrame, confidence: float) -> dict[str, Any]:
    """Scores and nats of the same questions, of a cell and of its base."""
    nats = both["nll"] / both["tokens"] - both["nll_base"] / both["tokens_base"]
    more = 100 * (both["found"] - both["found_base"])
    points, cost = (statistics.two_way(wide(both, each, QUESTION), confidence)
                    for each in (more, nats))  # fmt: skip
    return {
        "questions": cost.documents, "seeds": cost.seeds, "found": 100 * both["found"].mean(),
        "base_found": 100 * both["found_base"].mean(), **columns(points, "points", "points_"),
        **columns(cost, "nats"), "distant_density": both["distant_density"].mean(),
        "base_distant_density": both["distant_density_base"].mean(),
        "evidence": both["evidence"].iloc[0],
    }  # fmt: skip
