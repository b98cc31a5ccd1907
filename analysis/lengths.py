"""Routers on longer texts than they were trained on (Section 4, long context)."""

from __future__ import annotations

from functools import cache

import pandas as pd

from analysis.comparisons import quality
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
