"""A reference that needs every pair: queries keep the distant keys that full attention weighs most.

Every query, head and layer keeps the same share, so groups that spend pairs unevenly may beat it;
chosen for each key head, so may groups of query heads, which need not agree.

Shape suffixes: B batch, H query heads, Hk key heads, T tokens.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from experiments.attending import attending, plain_scale
from focus.attention.dense import attend

IMPLEMENTATION = "focus_oracle"


@contextmanager
def oracle(model: PreTrainedModel, share: float, window: int, sinks: int,
           each_head: bool = False) -> Iterator[PreTrainedModel]:  # fmt: skip
    """The attached model keeping, in every routed layer, the heaviest ``share`` of each query's
    distant keys (window and sinks aside), chosen for each key head.

    Args:
        each_head: chosen for each query head instead.

    Raises:
        ValueError: the share is not between 0 and 1; at a call, the input is padded, or the model
            has a sliding window or a soft-cap.
    """
    if not 0 <= share <= 1:
        raise ValueError(f"share: must be between 0 and 1, got {share}")

    def attention(module: nn.Module, query: Tensor, key: Tensor, value: Tensor,
                  attention_mask: Tensor | None, scaling: float | None = None,
                  **rest: Any) -> tuple[Tensor, None]:  # fmt: skip
        scale = plain_scale("oracle", query, key, attention_mask, scaling, rest)
        kept = heaviest(query, key, scale, share, window, sinks, each_head)
        return attend(query, key, value, scale, kept=kept).transpose(1, 2).contiguous(), None

    with attending(model, IMPLEMENTATION, attention):
        yield model


def heaviest(query: Tensor, key: Tensor, scale: float, share: float, window: int, sinks: int,
             each_head: bool = False) -> Tensor:  # fmt: skip
    """(B, Hk, T, T) bool: near pairs, and each query's distant keys of the greatest weight, by the
    mean over the query heads of a key head; (B, H, T, T) of ``each_head``: by its own weights.

    Args:
        query: (B, H, T, D); key: (B, Hk, T, D).
    """
    tokens = query.shape[2]
    position = torch.arange(tokens, device=query.device)
    distance = position[:, None] - position
    near = (distance >= 0) & ((distance < window) | (position < sinks))
    grouped = query.float().unflatten(1, (key.shape[1], -1))
    logits = grouped @ key.float().unsqueeze(2).transpose(-1, -2) * scale
    if each_head:
        weights = logits.flatten(1, 2)  # softmax would keep their order
    else:
        weights = logits.masked_fill_(distance < 0, -torch.inf).softmax(-1).mean(2)
    kept = near.repeat(*weights.shape[:2], 1, 1)
    # Row by row, as many as each may keep: a topk of all rows takes twice as long or more.
    for i in range(window + sinks, tokens):
        distant = weights[:, :, i, sinks : i - window + 1]
        best = distant.topk(round(share * distant.shape[-1]), sorted=False).indices
        kept[:, :, i].scatter_(-1, best + sinks, True)
    return kept
