"""Stage prefill: a whole forward pass of the model under a mask, against the pretrained model's.

In one run, taking turns at every length: the pretrained model, each experiment of the plan in hard
mode (:mod:`experiments.kernels.whole`), and the model with attention left out, whose time no
sparsity can save. From that and the share of pairs kept follows the bound: what a mask would reach
if a kept pair cost it what a pair costs full attention, and nothing else anything.

`python -m experiments.stages.prefill` writes results/<scale>/prefill/table.csv.
"""

from __future__ import annotations

import sys
from functools import partial
from statistics import fmean, median
from typing import Any

from torch import Tensor, nn
from transformers import PreTrainedModel

import focus
from experiments.command import measure
from experiments.kernels import whole
from experiments.kernels.timing import once
from experiments.methods.attending import attending
from experiments.record import Run
from experiments.settings import Settings

OUTSIDE = "all but attention"


def prefill(run: Run, chosen: Settings) -> None:
    """Times every length of ``prefill``."""
    whole.measure(run, chosen, "prefill.lengths", compare)


def compare(models: whole.Models, tokens: Tensor, chosen: Settings) -> list[dict[str, Any]]:
    """A row an experiment: the passes of all models over the same tokens (1, T)."""
    device = tokens.device
    ways = {whole.FULL: partial(forward, models.full),
            OUTSIDE: partial(without_attention, models.any_routed),
            **{name: partial(forward, model) for name, model in models.routed.items()}}  # fmt: skip
    taken = whole.take_turns(
        {name: partial(once, partial(way, tokens), [], False, device)
         for name, way in ways.items()},
        chosen.prefill,
    )  # fmt: skip
    rows, outside = [], median(taken[OUTSIDE])
    for name, model in models.routed.items():
        found, density = whole.compared(taken, name, chosen), kept(model, tokens)
        apart = min(outside, found["full_s"])  # of a short text, attention is less than the noise
        bound = found["full_s"] / (apart + density * (found["full_s"] - apart))
        rows.append({
            "device": device.type, "length": tokens.shape[1], **found, "outside_s": outside,
            "density": density, "bound": bound,
            "share_of_bound": found["speedup"] / bound,
        })  # fmt: skip
    return rows


def kept(model: PreTrainedModel, tokens: Tensor) -> float:
    """Share of the causal pairs of tokens (1, T) that a mask keeps, the mean over layers."""
    forward(model, tokens)
    return fmean(focus.density(model).values())


def forward(model: PreTrainedModel, tokens: Tensor) -> None:
    """One pass that gives the last token's logits; an attached model is in hard mode."""
    model(tokens, use_cache=False, logits_to_keep=1)


def without_attention(model: PreTrainedModel, tokens: Tensor) -> None:
    """The same with queries in the place of what attention would make of them."""
    with attending(model, "focus_outside", _queries):
        forward(model, tokens)


def _queries(module: nn.Module, query: Tensor, *_: Any, **__: Any) -> tuple[Tensor, None]:
    return query.transpose(1, 2).contiguous(), None


if __name__ == "__main__":
    sys.exit(measure("prefill", prefill))
