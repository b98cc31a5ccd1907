"""Stage prefill: a whole forward pass of the model over a long text, sparse and as pretrained.

`python -m experiments.stages.prefill` times, taking turns, the pretrained model and the hard mask
of trained routers on real text, and writes results/prefill/table.csv and metrics.json.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from torch import Tensor
from transformers import PreTrainedModel

import focus
from experiments import evaluation, models, settings, timing
from experiments.data import load_split
from experiments.record import Run
from experiments.settings import Settings
from focus.density import PairCounts

WARM_UP = 512  # tokens of the untimed call before the first timing


def main() -> None:
    """Command line of the stage."""
    chosen = settings.load()
    torch.set_num_threads(chosen.threads)
    with Run("prefill", None, chosen) as run:
        prefill(run, chosen)


@torch.no_grad()
def prefill(run: Run, chosen: Settings) -> None:
    """Times every variant and length of ``prefill``."""
    plan, rows = chosen.prefill, []
    text = torch.cat([document.tokens for document in load_split("test")])
    if len(text) < max(plan.lengths):
        raise ValueError(f"prefill.lengths: the test books have only {len(text)} tokens in all")
    with evaluation.progress() as bar:
        task = bar.add_task("prefill", total=len(plan.variants) * len(plan.lengths))
        for variant in plan.variants:
            model, _ = models.load(chosen.model.name, chosen.model.dtype)
            focus.load_adapter(model, Path("results/retrofit") / variant / "adapter")
            for length in plan.lengths:
                bar.update(task, description=f"prefill {variant} {length}")
                tokens = text[:length].unsqueeze(0).to(model.device)
                rows.append({"variant": variant, **compare(model, tokens, chosen)})
                bar.advance(task)
    run.table(pd.DataFrame(rows), "table.csv")
    for row in rows:
        name = f"{row['variant']}.{row['length']}"
        run.metric(f"{name}.speedup", row["speedup"], row["speedup_low"], row["speedup_high"])
        run.metric(f"{name}.density", row["density"])
    run.note("seed", chosen.seed)


def compare(model: PreTrainedModel, tokens: Tensor, chosen: Settings) -> dict[str, Any]:
    """Seconds of both modes over the same tokens (1, T), in turns; ratios turn by turn."""
    plan = chosen.prefill
    ways = {"full": {}, "hard": {"top_k": plan.top_k}}
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for name, options in ways.items():
        timed(model, name, options, tokens[:, :WARM_UP])
    for _ in range(plan.repetitions):
        for name, options in ways.items():
            seconds[name].append(timed(model, name, options, tokens))
    ratios = [full / hard for full, hard in zip(seconds["full"], seconds["hard"], strict=True)]
    return {
        "length": tokens.shape[1], "top_k": plan.top_k, "dtype": chosen.model.dtype,
        "full_s": min(seconds["full"]), "hard_s": min(seconds["hard"]),
        "speedup": min(seconds["full"]) / min(seconds["hard"]), "speedup_low": min(ratios),
        "speedup_high": max(ratios),
        "density": PairCounts.total(focus.pair_counts(model).values()).density,
        "repetitions": plan.repetitions,
    }  # fmt: skip


def timed(model: PreTrainedModel, name: str, options: dict[str, Any], tokens: Tensor) -> float:
    """Seconds of one forward pass that gives the last token's logits."""
    with focus.mode(model, name, **options):
        timing.wait(model.device)
        start = time.perf_counter()
        model(tokens, use_cache=False, logits_to_keep=1)
        timing.wait(model.device)
        return time.perf_counter() - start


if __name__ == "__main__":
    main()
