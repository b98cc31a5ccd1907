"""Ablations of the paper's way: one setting changed at a time, against its default."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any

import pandas as pd

from analysis.cells import Cell
from analysis.comparisons import quality, versus
from analysis.results import Results
from experiments import statistics
from focus.config import FocusConfig

# The paper's name of a setting, and ours.
SETTINGS = {"k": "num_groups", "window": "window", "tau": "temperature",
            "sinkhorn-iterations": "sinkhorn_iterations", "routing_dim": "routing_dim"}  # fmt: skip
# The default of each column of Table 9: routers alone, and with all weights.
DEFAULTS = {"centroids": "ablate", "joint": "tuned"}
LIBRARY = FocusConfig().to_dict()
COLUMNS = ["trained", "setting", "value", "default", "cell", "change", "low", "high", "ppl",
           "largest", "largest_low", "largest_high", "points", "points_low", "points_high",
           "documents", "seeds", "evidence"]  # fmt: skip


@cache
def table(results: Results) -> pd.DataFrame:
    """A row a way to train, setting and value: change of the perplexity under the training gate
    against the default (of the default: against the pretrained model), tokens in the largest group
    (percent) and the difference, in points, to the default's."""
    rows = [row for trained, name in DEFAULTS.items() if (default := results.cells.get(name))
            for row in _of_default(results, trained, default)]  # fmt: skip
    return pd.DataFrame(rows, columns=COLUMNS)


def _of_default(results: Results, trained: str, default: Cell) -> Iterator[dict[str, Any]]:
    for setting, field in SETTINGS.items():
        for cell in results.cells.values():
            if not beside(cell, default, field):
                continue
            yield {"trained": trained, "setting": setting, "value": whole(cell)[field],
                   "default": whole(default)[field], "cell": cell.name,
                   **perplexity(results, cell, default),
                   **largest(results, cell, default)}  # fmt: skip


def whole(cell: Cell) -> dict[str, Any]:
    """Every field of a cell's routers, those that params.yaml leaves to the library among them."""
    own = {name: value for name, value in cell.method.items() if name in LIBRARY}
    return {**LIBRARY, **own}


def beside(cell: Cell, default: Cell, field: str) -> bool:
    """Whether a cell is the default, or differs from it in this setting alone."""
    same = cell.model == default.model and cell.regime == default.regime
    same = (
        same
        and cell.block.startswith(default.block)
        and cell.method.get("name") == default.method.get("name")
    )
    one, other = whole(cell), whole(default)
    return same and all(one[name] == other[name] for name in one if name != field)


def perplexity(results: Results, cell: Cell, default: Cell) -> dict[str, Any]:
    """Against the default, or the default against the pretrained model."""
    frame = quality(results)
    if cell.name == default.name:
        own = frame[(frame["cell"] == cell.name) & (frame["base_role"] == "pretrained")]
    else:
        own = pd.DataFrame(versus(results, cell, default))
    own = own[own["condition"] == "soft"] if len(own) else own
    if own.empty:
        return {}
    names = ["change", "low", "high", "ppl", "documents", "seeds", "evidence"]
    return {name: own.iloc[0][name] for name in names}


def largest(results: Results, cell: Cell, default: Cell) -> dict[str, Any]:
    """Percent of the tokens in the largest group, the mean over layers, and the difference."""
    own, base = (shares(results, each) for each in (cell, default))
    if own.empty:
        return {}
    found = statistics.two_way(own.to_numpy(), results.confidence)
    row = dict(zip(("largest", "largest_low", "largest_high"),
                   (found.value, found.low, found.high), strict=True))  # fmt: skip
    if cell.name != default.name and base.shape == own.shape:
        apart = statistics.two_way((own - base).to_numpy(), results.confidence)
        row |= {"points": apart.value, "points_low": apart.low, "points_high": apart.high}
    return row


def shares(results: Results, cell: Cell) -> pd.DataFrame:
    """Percent of the tokens in the largest group: a row a seed, a column a document."""
    frame = results.groups
    own = frame[frame["cell"] == cell.name]
    if own.empty:
        return pd.DataFrame()
    own = own.assign(share=100 * own["largest_group"].astype(float))
    return own.pivot_table("share", "seed", ["document", "sha"])
