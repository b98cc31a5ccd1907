"""What becomes of groups while routers and weights learn together, by mitigation."""

from __future__ import annotations

from functools import cache
from typing import Any

import pandas as pd

from analysis.ablations import largest
from analysis.cells import Cell
from analysis.results import Results
from analysis.rows import columns, only
from experiments import statistics

# Our mitigations by the paper's name; the last three are not the paper's.
NAMES = {
    "softmax": "entropy-and-balance-loss", "stop_gradient": "stop-gradient-on-inputs",
    "ema": "ema-centroids-and-projection", "recluster": "recluster-every-100-steps",
    "softmax_x5": "balance-weight-x5", "sinkhorn": "sinkhorn",
    "causal": "causal potentials (ours)", "bias": "bias update (DeepSeek-V3)",
    "none": "plain softmax",
}  # fmt: skip
EVERY = ("drift", "shift", "rank", "alive", "agreement", "confidence")
# What mitigations are compared with, in params.yaml: a few steps of a pretrained model, and the
# paper's steps of a small one.
DEFAULTS = ("stable", "stable_routers", "steady", "steady_routers")
COLUMNS = ["cell", "experiment", "mitigation", "name", "weights", "groups", "steps", "layers",
           "seeds", "evidence",
           *(f"{name}{end}" for name in (*EVERY, "lost_rank", "largest")
             for end in ("", "_low", "_high")), "documents", "groups_evidence"]  # fmt: skip


def cells(results: Results) -> list[Cell]:
    """Joint trainings that were watched for the groups' sake: those that mitigations are compared
    with, and those that differ from one of them in the balance alone."""
    return [each for each in results.cells.values() if each.regime.get("name") == "joint"
            and (each.block in DEFAULTS or any(alike(each, results.cells.get(name))
                 for name in DEFAULTS if name in each.against))]  # fmt: skip


def alike(cell: Cell, default: Cell | None) -> bool:
    """Whether routers are the default's but for their balance, or there is no default."""
    own, theirs = ({**each.method, "balance": None} for each in (cell, default or cell))
    return own == theirs


@cache
def table(results: Results) -> pd.DataFrame:
    """A row a joint training: tokens in the largest group on test documents (percent), and at the
    last step, as means over layers with intervals over layers, how far centroids and hidden states
    moved, the dimensions that projected tokens fill (of those at first), groups that are alive, and
    the share of tokens that keep their group from look to look, over the second half."""
    found = [row(results, cell) for cell in cells(results)]
    return pd.DataFrame([each for each in found if each], columns=COLUMNS)


def row(results: Results, cell: Cell) -> dict[str, Any]:
    """One training, {} where it was not watched."""
    own = only(results.traces, cell=cell.name)
    if own.empty:
        return {}
    last = at_end(own)
    known: dict[str, Any] = {
        "cell": cell.name, "experiment": cell.block, "mitigation": cell.regime["mitigation"],
        "name": NAMES.get(cell.regime["mitigation"], cell.regime["mitigation"]),
        "weights": bool(cell.regime["weights"]), "groups": cell.method["num_groups"],
        "steps": int(own["step"].max()), "layers": len(last), "seeds": own["seed"].nunique(),
        "evidence": own["evidence"].iloc[0],
    }  # fmt: skip
    for name in (*EVERY, "lost_rank"):
        if last[name].notna().all() and len(last) > 1:
            known |= columns(statistics.mean(last[name], results.confidence), name, f"{name}_")
    return known | largest(results, cell, cell)


def at_end(trace: pd.DataFrame) -> pd.DataFrame:
    """A row a layer: what was noted at the last step, the dimensions lost since the first, and the
    agreement over the second half; at the last look the rate is next to zero, and all agrees."""
    first, last = (by_layer(trace, step) for step in (trace["step"].min(), trace["step"].max()))
    late = trace[trace["step"] > trace["step"].max() / 2].groupby("layer")["agreement"].mean()
    lost = (1 - last["rank"] / first["rank"]).clip(lower=0)
    return last.assign(agreement=late, lost_rank=lost)


def beside(results: Results, cell: str, other: str, measure: str) -> statistics.Interval:
    """A movement of one training as a share of another's, paired by layer."""
    own, theirs = (at_end(only(results.traces, cell=name))[measure].to_numpy()
                   for name in (cell, other))  # fmt: skip
    return statistics.ratio(own, theirs, results.confidence)


def by_layer(trace: pd.DataFrame, step: int) -> pd.DataFrame:
    """A row a layer: the mean over seeds at a step."""
    return only(trace, step=step).groupby("layer").mean(numeric_only=True)
