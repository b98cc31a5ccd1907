"""Models that read a text in steps, beside the whole of it at once."""

from __future__ import annotations

import torch
from torch import Tensor
from transformers import DynamicCache, PreTrainedModel

import focus
from focus import FocusConfig
from tests.models import tiny

CONFIG = FocusConfig(num_groups=4, top_k=1, window=16, sinks=2)
TOLERANCE = 3e-6
NGRAMS = {"ngram": 2, "ngram_keys": 3}


def attached(name: str, **changes: object) -> PreTrainedModel:
    """A tiny model whose groups are of mixed size."""
    model = focus.attach(tiny(name), CONFIG.replace(**changes), seed=0)
    for router in model.focus_state.routers.values():
        torch.manual_seed(3)
        router.potentials.normal_().mul_(model.focus_state.config.temperature)
        if router.config.heavy_hitters:
            router.heavy_weight.normal_()
            router.heavy_bias.fill_(-1.28 * router.heavy_weight.shape[1] ** 0.5)
    return model


def forced(model: PreTrainedModel, ids: Tensor, **kwargs: object) -> Tensor:
    """Logits of the whole sequence at once, by the definition."""
    with focus.mode(model, "hard", backend="dense"):
        return model(ids, use_cache=False, **kwargs).logits


def in_steps(model: PreTrainedModel, ids: Tensor, chunks: list[int], mask: Tensor | None = None,
             cache: DynamicCache | None = None) -> Tensor:  # fmt: skip
    """Logits of the last tokens, read in chunks; earlier ones are in the cache."""
    outs, stop = [], 0 if cache is None else cache.get_seq_length()
    for count in chunks:
        start, stop = stop, stop + count
        known = None if mask is None else mask[:, :stop]
        positions = None
        if mask is not None:
            positions = (known.cumsum(1) - 1).clamp_min(0)[:, start:]
        out = model(ids[:, start:stop], past_key_values=cache, attention_mask=known,
                    position_ids=positions, use_cache=True)  # fmt: skip
        cache = out.past_key_values
        outs.append(out.logits)
    return torch.cat(outs, 1)


SETTINGS = [
    {},
    {"routers": "key_head"},
    {"probe": "multi_probe", "top_k": 2, "sinks": 0},
    {"top_k": 2, "routers": "key_head"},
    {"top_k": 2, "probe": "multi_probe", "routers": "query_head"},
    {"balance": "softmax", "routers": "key_head", "window": 1},
    {"ngram": 3, "ngram_keys": 3},
    {"ngram": 2, "ngram_keys": 5, "top_k": 2, "probe": "multi_probe", "routers": "query_head"},
    {"heavy_hitters": 0.1},
    {"heavy_hitters": 0.1, "top_k": 2, "ngram": 2, "probe": "multi_probe", "routers": "query_head"},
]
