"""How uneven groups are by layer and over the steps of a training: 1 + CV^2 of their sizes, which
is 1 where all are alike and K where one has every token."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pandas as pd

from analysis import ablations
from analysis.cells import Cell
from analysis.results import Results
from analysis.rows import only, tabled

MEASURE = "one_plus_cv2"
AT = {"first": 0.0, "half": 0.5, "last": 1.0}  # looks, by their place among all
SUMMARY = {"median": "median", "least": "min", "most": "max"}


def traced(results: Results) -> list[Cell]:
    """The joint trainings whose groups were watched."""
    seen = set(results.traces["cell"])
    return [cell for cell in ablations.watched(results) if cell.name in seen]


def by_step(results: Results, cell: Cell) -> pd.DataFrame:
    """A row a step and a column a layer; the mean over seeds."""
    own = only(results.traces, cell=cell.name)
    return own.pivot_table(MEASURE, "step", "layer")


@tabled()
def table(results: Results) -> Iterator[dict[str, Any]]:
    """A row a training and layer, and three of all layers (``median``, ``least``, ``most``): at the
    first look, half-way, and at the last one."""
    for cell in traced(results):
        looks = by_step(results, cell)
        evidence = only(results.traces, cell=cell.name)["evidence"].iloc[0]
        known = {**ablations.described(cell), "steps": int(looks.index.max())}
        at = {name: looks.iloc[round(place * (len(looks) - 1))] for name, place in AT.items()}
        found = {name: {when: own.agg(how) for when, own in at.items()}
                 for name, how in SUMMARY.items()}  # fmt: skip
        found |= {layer: {when: own[layer] for when, own in at.items()} for layer in looks.columns}
        for layer, values in found.items():
            yield {**known, "layer": layer, **values, "evidence": evidence}
