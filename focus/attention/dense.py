"""The definition of Focus attention, O(T^2): what every fast path is tested against.

Shape suffixes: B batch, T tokens, H query heads, Hk key heads, D head dimension, K groups.
"""

from __future__ import annotations

import torch
from torch import Tensor

from focus.attention.checks import (
    Inputs,
    check_arguments,
    check_contents,
    check_finite,
    for_query_heads,
    named_keys,
    sink_tokens,
)
from focus.attention.extra import settle


def pairs_kept(
    membership: Tensor,
    key_membership: Tensor,
    window: int,
    sinks: int,
    real: Tensor | None = None,
    extra: Tensor | None = None,
    rows: slice = slice(None),
) -> Tensor:
    """The hard mask: (B, Hm, T, T) bool, True where query i attends to key j.

    A causal pair of real tokens is kept if ``i - j < window``, or j is a sink, or the query's
    and the key's groups meet (method: Section 3, "hard assignment"), or j is named for i.

    Args:
        membership: (B, Hm, T, K) bool, groups of each token as a query.
        key_membership: (B, Hm or Hk, T, K) bool, groups of each token as a key.
        window: tokens of the local window, the query's own among them.
        sinks: how many first real tokens are keys for everyone.
        real: (B, T) bool, False for padding; None when every token is real.
        extra: (B, T, E) int64, positions of further keys of each query, -1: none.
        rows: the queries to make it for, (B, Hm, rows, T); all by default.
    """
    batch, _, tokens, _ = membership.shape
    device = membership.device
    key_membership = for_query_heads(key_membership, membership.shape[1])
    own, keys = membership[:, :, rows].float(), key_membership.float()
    position = torch.arange(tokens, device=device)
    distance = position[rows, None] - position[None, :]
    is_sink = sink_tokens(real, batch, tokens, sinks, device)
    kept = own @ keys.transpose(-1, -2) > 0
    kept = kept | (distance < window) | is_sink[:, None, None, :]
    if extra is not None:
        kept = kept | named_keys(extra[:, rows], 0, tokens)
    kept = kept & (distance >= 0)
    if real is not None:
        kept = kept & real[:, None, None, :] & real[:, None, rows, None]
    return kept


def dense_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    membership: Tensor,
    *,
    window: int = 128,
    sinks: int = 0,
    scale: float | None = None,
    key_padding_mask: Tensor | None = None,
    key_membership: Tensor | None = None,
    extra_keys: Tensor | None = None,
    softcap: float | None = None,
) -> Tensor:
    """Masked attention by the definition, in the inputs' own precision (float64 included).

    Args:
        query, key, value, membership, window, sinks, scale, key_padding_mask, key_membership,
            extra_keys: as of :func:`focus.focus_attention`.
        softcap: logits become ``softcap * tanh(logit / softcap)`` (Gemma-2), before the mask.

    Returns:
        (B, H, T, D); rows of padding queries are zero.

    Raises:
        ValueError: what is wrong with which argument (values on CPU only), and what to do.
    """
    x = check_arguments(
        query, key, value, membership, window, sinks, scale, key_padding_mask, key_membership,
        extra_keys,
    )  # fmt: skip
    return dense_of(x, softcap)


def dense_of(x: Inputs, softcap: float | None = None) -> Tensor:
    """:func:`dense_attention` of checked arguments."""
    x = checked(x)
    kept = pairs_kept(x.membership, x.key_membership, x.window, x.sinks, x.real, x.extra)
    return attend(x.query, x.key, x.value, x.scale, kept=kept, softcap=softcap)


def checked(x: Inputs) -> Inputs:
    """With values looked at, on CPU, and memberships brought to (B, Hm, T, K)."""
    x = settle(x)
    check_finite(x)
    return check_contents(x)


def attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    scale: float,
    *,
    kept: Tensor,
    softcap: float | None = None,
) -> Tensor:
    """softmax(logits) @ value over the kept pairs; rows without any pair are zero.

    Args:
        query: (B, H, T, D); key, value: (B, Hk, T, D).
        scale: factor of the logits.
        kept: (B, Hm, T, T) bool with Hm = 1, Hk or H.
        softcap: see :func:`dense_attention`.
    """
    batch, heads, tokens, dim = query.shape
    key, value = (for_query_heads(x, kept.shape[1]) for x in (key, value))
    key_heads = key.shape[1]
    # 0 * NaN is NaN, forwards and backwards: what stands in padding must not reach a real row.
    query = query.masked_fill(~kept.any(-1).any(1)[:, None, :, None], 0.0)
    unused = ~kept.any(-2).any(1)[:, None, :, None]
    key, value = key.masked_fill(unused, 0.0), value.masked_fill(unused, 0.0)
    query = query.reshape(batch, key_heads, heads // key_heads, tokens, dim)
    # Scaled before the product, which float16 may not hold otherwise.
    logits = (query * scale) @ key.unsqueeze(2).transpose(-1, -2)
    if softcap is not None:
        logits = softcap * torch.tanh(logits / softcap)
    # A row that keeps nothing would be 0/0: its logits become 0 and its weights are cleared.
    kept = kept.unsqueeze(2)
    empty = ~kept.any(-1, keepdim=True)
    logits = logits.masked_fill(~kept, -torch.inf).masked_fill(empty, 0.0)
    upcast = torch.promote_types(logits.dtype, torch.float32)
    weights = torch.softmax(logits, -1, dtype=upcast).masked_fill(empty, 0.0).to(value.dtype)
    return (weights @ value.unsqueeze(2)).reshape(batch, heads, tokens, dim)
