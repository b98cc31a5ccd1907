"""Where in a long text a mask costs, and whether frozen potentials still balance there (Section 4,
long context)."""

from __future__ import annotations

from functools import cache
from typing import Any

import pandas as pd

from analysis import lengths
from analysis.cells import Cell
from analysis.comparisons import change, pairs
from analysis.results import Results
from analysis.rows import only

COLUMNS = ["method", "experiment", "cell", "position", "budget", "change", "low", "high",
           "documents", "seeds", "largest", "moved", "evidence"]  # fmt: skip


@cache
def table(results: Results) -> pd.DataFrame:
    """A row an experiment of :data:`analysis.lengths.LINES` and stretch of positions: change of the
    perplexity of its tokens against full attention, percent of the keys in the largest group, and
    percent of them that lie in another group than in the first stretch."""
    return pd.DataFrame(pairs(results, versus), columns=COLUMNS)


def versus(results: Results, cell: Cell, base: Cell) -> list[dict[str, Any]]:
    """Rows of one cell against a full model."""
    frame = results.readings["positions"]
    own = only(frame, cell=cell.name, experiment=lengths.LINES, condition="hard")
    theirs = only(frame, cell=base.name, condition="full")
    rows = []
    for (budget, position), ours in own.groupby(["budget", "position"], sort=False):
        same = only(theirs, position=position)
        both = set(ours["sha"]) & set(same["sha"])
        ours, same = (only(each, sha=both) for each in (ours, same))
        if len(both) > 1:
            rows.append({
                "method": lengths.LINES[cell.block], "experiment": cell.block, "cell": cell.name,
                "position": int(position), "budget": budget,
                **change(ours, same, results.confidence),
                **{name: ours[name].mean() if name in ours else None
                   for name in ("largest", "moved")},
                "evidence": ours["evidence"].iloc[0],
            })  # fmt: skip
    return rows
