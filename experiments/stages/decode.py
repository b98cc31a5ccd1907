"""Stage decode: the attention of one decoding step over lists of keys, against full attention's.

In one run, at every context: torch's SDPA over a contiguous cache and the library's step for each
routing, taking turns, and right after them transformers' way of appending; seconds and bytes of
keys and values. `bound` is full attention's bytes over those that a method has to read.

`python -m experiments.stages.decode` writes results/<scale>/decode/table.csv.
"""

from __future__ import annotations

import sys
from itertools import product

import pandas as pd
import torch

from experiments.command import measure
from experiments.kernels import stepping
from experiments.record import Run
from experiments.settings import Settings


@torch.no_grad()
def decode(run: Run, chosen: Settings) -> None:
    """Times every number format and context."""
    plan, rows = chosen.decode, []
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    for dtype, context in product(plan.dtypes, plan.contexts):
        # No progress bar here: its thread takes turns with the one that is timed.
        print(f"decode: {dtype}, {context} tokens", flush=True)
        layers = stepping.Layers(plan, context, getattr(torch, dtype), device, chosen.seed)
        errors = {r: stepping.error_of_a_step(layers, r) for r in plan.routings}
        stepped = [stepping.full_attention(layers, folded) for folded in (True, False)]
        stepped += [stepping.ours(layers, routing) for routing in plan.routings]
        stepping.take_turns(stepped, plan.repetitions, device)
        # Apart: what it allocates and frees at each step would slow its neighbour.
        copying = [stepping.appended_by_copy(layers)]
        stepping.take_turns(copying, plan.repetitions, device)
        rows += stepping.rows(layers, stepped + copying, errors, dtype)
    run.table(pd.DataFrame(rows), "table.csv")


if __name__ == "__main__":
    sys.exit(measure("decode", decode))
