"""An ablation is a block of params.yaml: what it changed is a row and a point by itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from analysis import ablations
from analysis.figures.further import draw
from analysis.results import Results
from experiments.settings import Settings
from experiments.stages import read
from experiments.training import train
from tests.analysis.group_files import write_ablation
from tests.experiments.training import CENTROIDS, work

__all__ = ["work"]

PAPER = {"name": "focus", "num_groups": 4, "top_k": 2, "window": 8, "sinks": 0, "gate": "eq2",
         "balance": "sinkhorn", "routers": "paper"}  # fmt: skip


def test_a_new_block_is_a_row_and_a_panel(
    work: Callable[..., Settings], params: dict[str, Any]
) -> None:
    default: dict[str, Any] = {"base": "plain", "method": PAPER,
                               "regime": {**CENTROIDS, "steps": 2}}  # fmt: skip
    short = {"kind": "perplexity", "texts": ["letters"], "documents": 2, "context": 64}
    params["readings"]["search"] = short
    chosen = work(
        ablate=default,
        mine={"base": "ablate", "sweep": {"gate": ["log"]}, "against": ["ablate"]},
    )
    for block in ("ablate", "mine"):
        train(block, 0, chosen)
        read.read(block, chosen)
    results = Results("results", "laptop")
    frame = ablations.table(results)
    own = frame[(frame["setting"] == "gate") & (frame["value"] == "log")]
    assert own["cell"].tolist() == ["mine-gatelog"]
    assert own["change"].notna().all()
    assert own["hard_change"].notna().all()
    assert own["distant_density"].between(0, 1).all()
    titles = [axis.get_title(loc="left") for axis in draw(results).axes]
    assert "training gate" in titles


def test_what_differs_in_two_settings_is_no_ablation(results: Results) -> None:
    write_ablation(results.root, "ablate", 0.0, 24.0)
    write_ablation(results.root, "both", 0.1, 24.0, against=["ablate"], gate="log",
                   window=64)  # fmt: skip
    write_ablation(results.root, "apart", 0.1, 24.0, against=["tuned"], gate="log")
    write_ablation(results.root, "one", 0.1, 24.0, against=["ablate"], gate="log")
    frame = ablations.table(results)
    assert set(frame["cell"]) == {"ablate", "one"}
