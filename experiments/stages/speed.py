"""Stage speed (Table 6, Figure 1's speed axis): attention alone, against the length.

In one run, taking turns: full FlashAttention, the sliding window alone, the paper's decomposition
for k = 1, what runs without a compiler (``stripes``: all pairs under the mask), and what a user of
the library gets (``ours``: backend ``auto``). Reported beside the speed-up is the bound that the
kept pairs set.

`python -m experiments.stages.speed` writes results/<scale>/speed/table.csv.
"""

from __future__ import annotations

import sys
from typing import Any

import pandas as pd
import torch

from experiments.command import measure
from experiments.kernels import timing
from experiments.kernels.timing import Routed, Shape
from experiments.record import Run
from experiments.settings import Settings, Speed


def speed(run: Run, chosen: Settings) -> None:
    """Times every length, forward and, up to `speed.both_until`, with the backward pass."""
    plan, rows = chosen.speed, []
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    for tokens in plan.lengths:
        # No progress bar here: its thread takes turns with the one that is timed.
        print(f"speed: {tokens} tokens", flush=True)
        shape = Shape(tokens, plan.heads, plan.key_heads, plan.head_dim, plan.window,
                      getattr(torch, plan.dtype), device)  # fmt: skip
        routings = routings_of(plan, shape, chosen.seed)
        for backward in (False, True) if tokens <= plan.both_until else (False,):
            rows += time_length(plan, shape, routings, backward, chosen.seed)
    run.table(pd.DataFrame(rows), "table.csv")


def routings_of(plan: Speed, shape: Shape, seed: int) -> list[Routed]:
    """The routings that are timed at a length."""
    found = []
    for groups in plan.groups:
        if groups > shape.tokens:
            continue
        for top_k in plan.top_ks:
            for probe in plan.probes:
                if probe == "multi_probe" and top_k == 1:
                    continue  # the same as symmetric
                if shape.tokens >= plan.single_from and (top_k > 1 or probe != "symmetric"):
                    continue
                found.append(timing.route(shape, groups, top_k, probe, seed))
    return found


def time_length(plan: Speed, shape: Shape, routings: list[Routed], backward: bool,
                seed: int) -> list[dict[str, Any]]:  # fmt: skip
    """Rows of one length and direction."""
    names = ["full", "ours"]
    if not backward:
        names += ["window", "paper_k1"]
    if backward:
        routings = [routed for routed in routings if routed.top_k == min(plan.top_ks)]
    if shape.tokens <= plan.quadratic_until:
        names.append("stripes")
    if shape.device.type == "cuda":
        names = [name for name in names if name not in ("window", "paper_k1")]
    timed = timing.methods(shape, routings, names)
    timing.time_methods(shape, timed, backward, plan.seconds, plan.most_repetitions, seed)
    return list(timing.rows(shape, timed, backward))


if __name__ == "__main__":
    sys.exit(measure("speed", speed))
