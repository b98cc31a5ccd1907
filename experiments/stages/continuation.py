"""Stage continuation: tokens generated after a context under a mask, against the pretrained model.

In one run, taking turns at every context: greedy generation with a filled cache by the pretrained
model and by each experiment of the plan in hard mode (:mod:`experiments.kernels.whole`). Filling
the caches is not timed. The pretrained model's holds random keys and values, since their size alone
decides its time; an experiment's is filled by reading held-out documents, one after the other.

`python -m experiments.stages.continuation` writes results/<scale>/continuation/table.csv.

Shapes: T tokens of the context.
"""

from __future__ import annotations

import sys
from functools import partial
from typing import Any

import torch
from torch import Tensor
from transformers import Cache, DynamicCache, PreTrainedModel

from experiments.command import measure
from experiments.kernels import whole
from experiments.kernels.timing import once
from experiments.record import Run
from experiments.settings import Settings
from focus.cache import FocusCache


def continuation(run: Run, chosen: Settings) -> None:
    """Times every context of ``continuation``."""
    whole.measure(run, chosen, "continuation.contexts", compare, more=1)


def compare(models: whole.Models, ids: Tensor, chosen: Settings) -> list[dict[str, Any]]:
    """A row an experiment: tokens generated after ids (1, T + 1), all but the last of which are
    cached."""
    plan, context = chosen.continuation, ids.shape[1] - 1
    caches = {name: (model, read(model, ids)) for name, model in models.routed.items()}
    caches[whole.FULL] = models.full, drawn(models, context, chosen)
    runs = {name: partial(timed, model, ids, cache, plan.new_tokens)
            for name, (model, cache) in caches.items()}  # fmt: skip
    taken = whole.take_turns(runs, plan)
    return [{"device": ids.device.type, "length": context, "new_tokens": plan.new_tokens,
             **whole.compared(taken, name, chosen)}
            for name in models.routed]  # fmt: skip


def drawn(models: whole.Models, context: int, chosen: Settings) -> Cache:
    """The pretrained model's cache with random keys and values for a context."""
    model, cache = models.full, DynamicCache(config=models.full.config)
    generator = torch.Generator().manual_seed(chosen.seed)
    for index, layer in models.any_routed.focus_state.layers.items():
        size = (1, layer.key_heads, context, layer.module.head_dim)
        key, value = (
            torch.randn(size, generator=generator).to(model.device, model.dtype) for _ in range(2)
        )
        cache.update(key, value, index)
    return cache


def read(model: PreTrainedModel, ids: Tensor) -> Cache:
    """A cache under the mask after all but the last of ids (1, T + 1)."""
    cache = FocusCache()
    model(ids[:, :-1], past_key_values=cache, use_cache=True, logits_to_keep=1)
    return cache


def timed(model: PreTrainedModel, ids: Tensor, cache: Cache, count: int) -> float:
    """Seconds to generate ``count`` tokens after ids (1, T + 1) with a cache of T tokens or more,
    whatever follows those."""
    cache.crop(ids.shape[1] - 1 - cache.get_seq_length())
    return once(partial(generate, model, ids, cache, count), [], False, ids.device)


def generate(model: PreTrainedModel, ids: Tensor, cache: Cache, count: int) -> Tensor:
    """Greedy tokens (1, T + 1 + count), whatever the model says."""
    return model.generate(
        ids, attention_mask=torch.ones_like(ids), past_key_values=cache, max_new_tokens=count,
        min_new_tokens=count, do_sample=False, pad_token_id=0,
    )  # fmt: skip


if __name__ == "__main__":
    sys.exit(measure("continuation", continuation))
