"""Stage training: the attention of a training step, forward and backward, against full attention's.

The paper trains with every pair computed and calls training below that open. In one run, taking
turns at every length: torch's causal SDPA, and each gate over random assignments, whose gradient
is computed too.

`python -m experiments.stages.training` writes results/training/table.csv and metrics.json.
"""

from __future__ import annotations

from typing import Any

import pandas as pd
import torch
from torch import Tensor

from experiments import settings, timing
from experiments.kernel_settings import TrainingSettings
from experiments.record import Run
from experiments.settings import Settings
from experiments.timing import Shape, Timed
from focus.config import FocusConfig
from focus.gating import gated_attention
from focus.routing import Assignments

SHARPNESS = 4.0  # of the drawn scores: a token's first group has most of it, as in trained routers


def main() -> None:
    """Command line of the stage."""
    chosen = settings.load()
    torch.set_num_threads(chosen.threads)
    with Run("training", None, chosen) as run:
        training(run, chosen)


def training(run: Run, chosen: Settings) -> None:
    """Times every length."""
    plan, rows = chosen.training, []
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    for tokens in plan.lengths:
        # No progress bar here: its thread takes turns with the one that is timed.
        print(f"training: {tokens} tokens", flush=True)
        shape = Shape(tokens, plan.heads, plan.key_heads, plan.head_dim, plan.window,
                      getattr(torch, plan.dtype), device)  # fmt: skip
        timed = [Timed("full", None, timing.full, [])]
        timed += [
            gate_method(plan, shape, gate, chosen.seed)
            for gate in plan.gates
            # Elsewhere than on CPU every gate is its definition.
            if tokens <= plan.quadratic_until or (gate == "sparse_log" and device.type == "cpu")
        ]
        timing.time_methods(shape, timed, True, plan.seconds, plan.most_repetitions, chosen.seed)
        rows += list(table_rows(plan, shape, timed))
    run.table(pd.DataFrame(rows), "table.csv")
    for row in rows:
        if row["method"] != "full":
            name = f"{row['method']}.{row['length']}.speedup"
            run.metric(name, row["speedup"], row["speedup_low"], row["speedup_high"],
                       row["repetitions"])  # fmt: skip


def gate_method(plan: TrainingSettings, shape: Shape, gate: str, seed: int) -> Timed:
    """A gate over assignments drawn from a seed, which get a gradient of their own."""
    config = FocusConfig(num_groups=plan.groups, top_k=plan.top_k, window=plan.window,
                         sinks=plan.sinks, gate=gate)  # fmt: skip
    routers = plan.key_heads if plan.routers == "kv_head" else 1
    generator = torch.Generator().manual_seed(seed)
    drawn = torch.randn(2, 1, routers, shape.tokens, plan.groups, generator=generator)
    scores = (SHARPNESS * drawn).to(shape.device).requires_grad_()

    def run(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        assignments = Assignments(*scores.softmax(-1))
        return gated_attention(query, key, value, assignments, config)

    return Timed(gate, None, run, [])


def table_rows(plan: TrainingSettings, shape: Shape, timed: list[Timed]) -> list[dict[str, Any]]:
    """Median and range of each method's seconds, and of its speed-up within each round."""
    return [
        {"device": shape.device.type, "length": shape.tokens, "method": each.method,
         "K": plan.groups, "k": plan.top_k, "routers": plan.routers, "window": shape.window,
         "sinks": plan.sinks, "heads": shape.heads, "key_heads": shape.key_heads,
         "head_dim": shape.head_dim, "dtype": plan.dtype,
         **timing.compared(timed[0].seconds, each.seconds), "peak_mb": each.peak_mb,
         "repetitions": len(each.seconds)}
        for each in timed
    ]  # fmt: skip


if __name__ == "__main__":
    main()
