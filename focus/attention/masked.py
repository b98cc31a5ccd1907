"""New tokens over a past on any device: all keys under a mask.

Nothing is asked of the device, so a step on a GPU waits for nothing.

Shape suffixes: B batch, H query heads, Hk key heads, R routings of queries (1, Hk or H), M queries,
N keys, D head dimension, K groups, E further keys.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from focus.attention.bits import unpack
from focus.attention.checks import for_query_heads, named_keys
from focus.attention.past import Past

MASK_ENTRIES = 2**24  # of one masked call


def masked(query: Tensor, groups: Tensor, extra: Tensor | None, past: Past, scale: float,
           softcap: float | None) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Attention of the last M tokens, (B, H, M, D), and the kept pairs of all routings, a number
    that is still on the device. Arguments as in
    :func:`focus.attention.decode.decode_attention`."""
    rows = past.filed()[0][:, :, : past.seen - past.first]
    batch, heads, count, _ = query.shape
    key, value = rows.unbind(3)
    step = max(1, MASK_ENTRIES // (batch * heads * rows.shape[2]))
    outs, total = [], torch.zeros((), dtype=torch.int64, device=query.device)
    for start in range(0, count, step):
        own = slice(start, start + step)
        kept = _pairs(groups, extra, past, own)
        total = total + kept.sum()
        if kept.shape[1] > 1:
            kept = for_query_heads(kept, heads)
        outs.append(_attend(query[:, :, own], key, value, kept, scale, softcap))
    return torch.cat(outs, 2), total


def _pairs(groups: Tensor, extra: Tensor | None, past: Past, own: slice) -> Tensor:
    """(B, R, M, N) bool: what some of the last tokens keep."""
    _, bits, sinks = past.filed()
    position = torch.arange(past.first, past.seen, device=groups.device)
    query = position[-groups.shape[2] :][own].unsqueeze(1)
    key_groups = unpack(bits[:, :, : len(position)], groups.shape[3])
    key_groups = for_query_heads(key_groups, groups.shape[1])
    kept = groups[:, :, own].float() @ key_groups.float().transpose(-1, -2) > 0
    is_sink = (position == sinks.unsqueeze(-1)).any(1)[:, None, None]
    kept = kept | (position > query - past.rule.reach) | is_sink
    if extra is not None:
        kept = kept | named_keys(extra[:, own], past.first, len(position))
    kept = kept & (position <= query)
    if past.rule.limit is not None:
        kept = kept & (position > query - past.rule.limit)
    if past.real is not None:
        real = past.real[:, -groups.shape[2] :][:, own]
        kept = kept & past.real[:, None, None, past.first :] & real[:, None, :, None]
    return kept


def _attend(query: Tensor, key: Tensor, value: Tensor, kept: Tensor, scale: float,
            softcap: float | None) -> Tensor:  # fmt: skip
    """Softmax over the kept keys; zeros where there are none."""
    # A step of a GPU goes the second way: cuDNN, which torch takes there, plans anew for every
    # number of keys, for milliseconds.
    if softcap is None and not (query.is_cuda and query.shape[2] == 1):
        out = scaled_dot_product_attention(query, key, value, attn_mask=kept, scale=scale,
                                           enable_gqa=query.shape[1] > key.shape[1])  # fmt: skip
    else:
        upcast = torch.promote_types(query.dtype, torch.float32)
        folded = query.to(upcast).unflatten(1, (key.shape[1], -1))
        logits = folded @ key.to(upcast).transpose(-1, -2).unsqueeze(2) * scale
        if softcap is not None:
            logits = softcap * torch.tanh(logits / softcap)
        logits = logits.flatten(1, 2)
        weights = torch.softmax(logits.masked_fill(~kept, -torch.inf), -1)
        weights = weights.unflatten(1, (key.shape[1], -1))
        out = (weights @ value.to(upcast).unsqueeze(2)).flatten(1, 2).to(query.dtype)
    return out.masked_fill(~kept.any(-1, keepdim=True), 0.0)
