"""A model under masks of every pair, by plain torch: what methods are held against.

Shape suffixes: B batch, T tokens, H query heads, Hk key heads, D head dimension.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionMaskInterface, PreTrainedModel
from transformers.masking_utils import sdpa_mask
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

import focus
from experiments.methods.base import Method
from focus.attention.dense import pairs_kept
from focus.ngrams import keys_after_ngrams
from tests.models import tiny

NAME = "reference"
MaskOf = Callable[[int, Tensor, Tensor], Tensor]  # layer, query, key -> (B, 1, Hk or H, T, T) bool


@contextmanager
def masked(mask_of: MaskOf) -> Iterator[PreTrainedModel]:
    """A tiny Llama, nothing attached, whose layers attend under masks."""

    def attention(module: nn.Module, query: Tensor, key: Tensor, value: Tensor, mask: Any,
                  scaling: float, **_: Any) -> tuple[Tensor, None]:  # fmt: skip
        kept = mask_of(int(module.layer_idx), query, key)
        kept = kept.repeat_interleave(query.shape[1] // kept.shape[1], 1)
        key, value = (x.repeat_interleave(query.shape[1] // x.shape[1], 1) for x in (key, value))
        logits = (query @ key.transpose(-1, -2) * scaling).masked_fill(~kept, -torch.inf)
        return (logits.softmax(-1) @ value).transpose(1, 2).contiguous(), None

    ALL_ATTENTION_FUNCTIONS[NAME] = attention
    AttentionMaskInterface.register(NAME, sdpa_mask)
    model = tiny("tiny-llama")
    model.set_attn_implementation(NAME)
    try:
        yield model
    finally:
        del ALL_ATTENTION_FUNCTIONS[NAME]


def masks_of(model: PreTrainedModel, method: Method, budget: Any, ids: Tensor) -> dict[int, Tensor]:
    """Of the last forward pass, by layer: (B, Hm, T, T) bool from the groups that it made and what
    the method says of itself."""
    told = method.describe(budget)
    extra = None
    if told["ngram"]:
        extra = keys_after_ngrams(ids, told["ngram"], 4, told["window"], ids.shape[1])
    return {
        index: pairs_kept(each.query, each.of_keys, told["window"], told["sinks"], None, extra)
        for index, each in focus.memberships(model).items()
    }


def near_pairs(tokens: int, window: int, sinks: int) -> Tensor:
    """(T, T) bool: pairs within the window or with a sink."""
    i, j = torch.arange(tokens)[:, None], torch.arange(tokens)[None, :]
    return (j <= i) & ((i - j < window) | (j < sinks))


def heaviest_by_definition(query: Tensor, key: Tensor, share: float, window: int,
                           sinks: int) -> Tensor:  # fmt: skip
    """(B, H, T, T) bool: near pairs and each query's heaviest distant keys, row by row."""
    heads, key_heads, tokens = query.shape[1], key.shape[1], query.shape[2]
    logits = query @ key.repeat_interleave(heads // key_heads, 1).transpose(-1, -2)
    future = torch.ones(tokens, tokens, dtype=torch.bool).triu(1)
    weights = (logits * query.shape[-1] ** -0.5).masked_fill(future, -torch.inf).softmax(-1)
    near = near_pairs(tokens, window, sinks)
    kept, so_far = near.repeat(*weights.shape[:2], 1, 1), 0
    for i in range(tokens):
        distant = (~near[i, : i + 1]).nonzero().flatten()
        count = int(share * (so_far + len(distant)) + 1e-9) - int(share * so_far + 1e-9)
        so_far += len(distant)
        order = weights[..., i, distant].argsort(-1, descending=True)[..., :count]
        kept[..., i, :] |= nn.functional.one_hot(distant[order], tokens).bool().any(-2)
    return kept


def words(windows: int, tokens: int, seed: int = 3) -> Tensor:
    """Ids (N, T) of which a few make up most of a text, as words do."""
    drawn = torch.rand(windows, tokens, generator=torch.Generator().manual_seed(seed))
    return (250 * drawn**4).long()
