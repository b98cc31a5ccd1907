"""Attention under the hard mask wherever torch runs, in stripes of query rows.

The mask of a stripe is the definition's (:func:`focus.attention.dense.pairs_kept`), so memory is
that of a stripe's rows and nothing is ever as large as T x T; no pair is saved by sparsity either.

Shape suffixes: B batch, Hm routings (1, Hk or H), S rows of a stripe, N keys up to its last row, T
tokens, H query heads, Hk key heads, G query heads of a key head, D head dimension.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from focus.attention.checks import Inputs, cleared, for_query_heads
from focus.attention.dense import pairs_kept

PAIRS = 1 << 22  # of all query heads of a stripe
FEWEST_ROWS = 16


def forward(x: Inputs) -> tuple[Tensor, Tensor]:
    """Output (B, H, T, D), and zeros in place of the log-sum-exp, which torch's call keeps to
    itself: :func:`backward` takes whole rows and needs none.

    Args:
        x: inputs after :func:`focus.attention.checks.check_contents`.
    """
    batch, heads, tokens, dim = x.query.shape
    query, key, value = (cleared(each, x.real) for each in (x.query, x.key, x.value))
    out = query.new_empty(batch, tokens, heads, dim).transpose(1, 2)
    if not x.on_cpu:  # torch's memory-efficient kernel there wants as many heads of each
        key, value = for_query_heads(key, heads), for_query_heads(value, heads)
    for rows, kept_BMSN in _stripes(x):
        before = slice(0, rows.stop)
        if kept_BMSN.shape[1] > 1:
            kept_BMSN = for_query_heads(kept_BMSN, heads)
        out[:, :, rows] = scaled_dot_product_attention(
            query[:, :, rows], key[:, :, before], value[:, :, before],
            attn_mask=kept_BMSN, scale=x.scale,
            enable_gqa=key.shape[1] != heads,
        )  # fmt: skip
    if x.real is not None:
        out.masked_fill_(~x.real[:, None, :, None], 0.0)
    wide = torch.promote_types(query.dtype, torch.float32)
    return out, query.new_zeros(batch, heads, tokens, dtype=wide)


def backward(grad: Tensor, x: Inputs) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients in query, key and value, with every stripe's weights computed again."""
    wide = torch.promote_types(x.query.dtype, torch.float32)
    key_heads = x.key.shape[1]
    tensors = (grad, x.query, x.key, x.value)
    grad, query, key, value = (cleared(each, x.real) for each in tensors)
    d_query = torch.empty_like(query)
    d_key, d_value = torch.zeros_like(key, dtype=wide), torch.zeros_like(value, dtype=wide)
    for rows, kept_BMSN in _stripes(x):
        q, g = (each[:, :, rows].to(wide).unflatten(1, (key_heads, -1)) for each in (query, grad))
        k, v = (each[:, :, : rows.stop].to(wide).unsqueeze(2) for each in (key, value))
        kept = kept_BMSN.unflatten(1, (min(key_heads, kept_BMSN.shape[1]), -1))
        logits = (q * x.scale) @ k.transpose(-1, -2)
        weights = torch.softmax(logits.masked_fill_(~kept, -torch.inf), -1)
        d_weights = g @ v.transpose(-1, -2)
        mean = (weights * d_weights).sum(-1, keepdim=True)
        d_logits = d_weights.sub_(mean).mul_(weights).mul_(x.scale)
        d_query[:, :, rows] = (d_logits @ k).flatten(1, 2).to(d_query.dtype)
        d_key[:, :, : rows.stop] += (d_logits.transpose(-1, -2) @ q).sum(2)
        d_value[:, :, : rows.stop] += (weights.transpose(-1, -2) @ g).sum(2)
    return d_query, d_key.to(key.dtype), d_value.to(value.dtype)


def _stripes(x: Inputs) -> Iterator[tuple[slice, Tensor]]:
    """Rows and their mask (B, Hm, S, N); rows of padding, whose output is dropped, see every key,
    so that no softmax is empty."""
    batch, heads, tokens, _ = x.query.shape
    size = max(FEWEST_ROWS, PAIRS // (batch * heads * tokens))
    for start in range(0, tokens, size):
        rows = slice(start, min(tokens, start + size))
        real = None if x.real is None else x.real[:, : rows.stop]
        kept = pairs_kept(
            x.membership[:, :, : rows.stop], x.key_membership[:, :, : rows.stop], x.window, x.sinks,
            real, None if x.extra is None else x.extra[:, : rows.stop], rows,
        )  # fmt: skip
        if real is not None:
            kept = kept | ~real[:, None, rows, None]
        yield rows, kept
