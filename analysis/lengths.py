"""Routers on longer texts than they were trained on, and where in them a mask costs (Section 4)."""

from __future__ import annotations

from functools import cache
from typing import Any

import pandas as pd

from analysis.cells import Cell
from analysis.comparisons import change, pairs, quality
from analysis.results import Results
from analysis.rows import only

# Experiments of params.yaml, and what they are called.
LINES = {
    "long_paper": "the paper's setup, 2 of 4 groups",
    "long_paper_steps": "the paper's setup, its 4,000 steps",
    "long_paper_books": "the paper's setup on books, 2 of 4 groups",
    "long_recipe": "ours: FocusConfig.recipe()",
    "long_heavy_untrained": "ours, with heavy hitters",
    "long_longer_heavy": "ours, heavy hitters, 3x steps",
    "long_longer_allocated": "ours, calibrated, 3x steps",
}
COLUMNS = ["method", "trained_at", "cell", "context", "against", "change", "low", "high",
           "distant_density", "density", "documents", "seeds", "evidence"]  # fmt: skip
POSITIONS = ["method", "experiment", "cell", "position", "budget", "change", "low", "high",
           "documents", "seeds", "largest", "moved", "evidence"]  # fmt: skip


@cache
def table(results: Results) -> pd.DataFrame:
    """A row an experiment and length: change of the perplexity against full attention at that
    length, and the share of the pairs kept; ``trained_at``: tokens of a training window."""
    own = only(quality(results), experiment=LINES, condition="hard")
    known = own.assign(method=own["experiment"].map(LINES),
                       trained_at=[trained_at(results, cell) for cell in own["cell"]])  # fmt: skip
    return known[COLUMNS].sort_values(["method", "context"], kind="stable")


def trained_at(results: Results, cell: str) -> int | None:
    """Tokens of the windows that a cell's start was trained on."""
    start = results.cells.get(results.cells[cell].start or "")
    return None if start is None else start.regime.get("context")


@cache
def positions(results: Results) -> pd.DataFrame:
    """A row an experiment of :data:`LINES` and stretch of positions: change of the
    perplexity of its tokens against full attention, percent of the keys in the largest group, and
    percent of them that lie in another group than in the first stretch."""
    return pd.DataFrame(pairs(results, _by_position), columns=POSITIONS)


def _by_position(results: Results, cell: Cell, base: Cell) -> list[dict[str, Any]]:
    """Rows of one cell against a full model."""
    frame = results.readings["positions"]
    own = only(frame, cell=cell.name, experiment=LINES, condition="hard")
    theirs = only(frame, cell=base.name, condition="full")
    rows = []
    for (budget, position), ours in own.groupby(["budget", "position"], sort=False):
        same = only(theirs, position=position)
        both = set(ours["sha"]) & set(same["sha"])
        ours, same = (only(each, sha=both) for each in (ours, same))
        if len(both) > 1:
            rows.append({
                "method": LINES[cell.block], "experiment": cell.block, "cell": cell.name,
                "position": int(position), "budget": budget,
                **change(ours, same, results.confidence),
                **{name: ours[name].mean() if name in ours else None
                   for name in ("largest", "moved")},
                "evidence": ours["evidence"].iloc[0],
            })  # fmt: skip
    return rows
