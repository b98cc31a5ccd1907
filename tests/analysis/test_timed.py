"""Quality beside time: a mask is found among what was read by its groups or its budget."""

from __future__ import annotations

from analysis import tables
from analysis.results import Results
from tests.analysis.result_files import (
    RECIPE,
    ROUTERS,
    write_adapted,
    write_masks,
    write_pretrained,
    write_table,
)

WINDOW = {"method": "window", "K": None, "k": None}
COSTS = {0.125: -0.064}  # against the pretrained model, of which the adapted one is 10% below


def test_masks_are_joined_by_what_they_are(results: Results) -> None:
    root, bases = results.root, ["adapted", "pretrained"]
    write_pretrained(root)
    write_adapted(root)
    write_masks(root, "recipe", COSTS, method=RECIPE, regime=ROUTERS, against=bases)
    write_masks(root, "window", {0.125: -0.055}, method={"name": "window"}, against=bases)
    write_table(root, "masks", {"method": "full", "time": 1.0}, {"k": 2, "time": 0.2},
                {"k": 5, "time": 0.5}, {**WINDOW, "budget": 0.125, "time": 0.1},
                {**WINDOW, "budget": 0.25, "time": 0.3})  # fmt: skip
    frame = tables.timed(Results(results.base, "laptop"))
    found = {(row["role"], row["time"]): round(row["change"], 4) for _, row in frame.iterrows()}
    assert found == {("ours", 0.2): 0.04, ("window", 0.1): 0.05}
