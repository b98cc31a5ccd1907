"""Stage masks (Figure 1's time): attention at one length under each mask whose quality is read.

In one run, taking turns: full FlashAttention, groups as the recipe, heavy hitters and the paper
have them (random, of one size), and windows that keep as many distant pairs. Routing and
the search for n-grams are not timed here: stage prefill has them.

`python -m experiments.stages.masks` writes results/<scale>/masks/table.csv.
"""

from __future__ import annotations

import sys
from typing import Any

import pandas as pd
import torch

from experiments.command import measure
from experiments.kernels import masks
from experiments.kernels.masks import Masked
from experiments.kernels.synthetic import draw_tensors
from experiments.kernels.timing import compared, once
from experiments.record import Run
from experiments.settings import Masks, Settings


@torch.no_grad()
def time_masks(run: Run, chosen: Settings) -> None:
    """Times all masks, after a round that warms up."""
    plan = chosen.masks
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    tensors = [each.to(device) for each in draw_tensors(
        1, plan.heads, plan.key_heads, plan.length, plan.head_dim, getattr(torch, plan.dtype),
        torch.Generator().manual_seed(chosen.seed))]  # fmt: skip
    every = list(masks.every(plan, device, chosen.seed))
    for number in range(plan.repetitions + 1):
        # No progress bar here: its thread takes turns with the one that is timed.
        print(f"masks: round {number} of {plan.repetitions}", flush=True)
        for each in every:
            took = once(each.run, tensors, False, device)
            each.seconds += [took] if number else []
    run.table(pd.DataFrame([row(plan, each, every[0], device) for each in every]), "table.csv")


def row(plan: Masks, each: Masked, full: Masked, device: torch.device) -> dict[str, Any]:
    """A row of the table; ``time``: seconds over full attention's, round by round."""
    beside = compared(full.seconds, each.seconds)
    return {
        "device": device.type, "length": plan.length, "heads": plan.heads,
        "key_heads": plan.key_heads, "head_dim": plan.head_dim, "dtype": plan.dtype,
        "window": plan.window, "budget": None, "K": None, "k": None, "probe": None,
        "routers": None, "heavy": None, "allocated": None, **each.told,
        "density": 1.0 if each.pairs is None else each.pairs.density,
        "median_s": beside["median_s"], "time": 1 / beside["speedup"],
        "time_low": 1 / beside["speedup_high"], "time_high": 1 / beside["speedup_low"],
        "repetitions": len(each.seconds),
    }  # fmt: skip


if __name__ == "__main__":
    sys.exit(measure("masks", time_masks))
