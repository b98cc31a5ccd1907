"""Attention of new tokens over a past, exactly as the hard mask says.

A query reads about k*T/K + window keys. On a CPU with a compiler one compiled call, and on CUDA
Triton's kernels, file the new tokens and read what each query keeps where it lies; elsewhere every
query reads all keys under a mask.

Shape suffixes: B batch, H query heads, Hk key heads, R routings of queries (1, Hk or H), M new
tokens, N keys, D head dimension, K groups, E further keys of a query.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from focus.attention.bits import unpack
from focus.attention.checks import for_query_heads, is_finite, learns, named_keys
from focus.attention.native import step
from focus.attention.past import Past
from focus.attention.rule import Rule
from focus.attention.triton import step as triton
from focus.density import PairCounts, pairs_by_place

MASK_ENTRIES = 2**24  # of one masked call

Counting = Callable[[], PairCounts]


def _counts(rule: Rule, batch: int, routings: int, start: int, stop: int, real: Tensor | None,
            total: int | Tensor) -> PairCounts:  # fmt: skip
    """Pairs of the queries from ``start`` up to ``stop``, summed over batch and routings, of which
    ``total`` (to be summed) were kept; real: (B, stop) bool, or None."""
    if real is None:
        real = torch.ones(batch, stop, dtype=torch.bool, device="cpu")
    found = pairs_by_place(real, rule.window, rule.sinks, rule.limit, start)
    causal, near, distant = (each * routings for each in found)
    kept = total if isinstance(total, int) else int(total.sum())
    return PairCounts(causal, near, distant, kept - near)


def decode_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    query_groups: Tensor,
    key_groups: Tensor,
    past: Past,
    *,
    scale: float | None = None,
    real: Tensor | None = None,
    softcap: float | None = None,
    extra_keys: Tensor | None = None,
) -> tuple[Tensor, Counting]:
    """Appends new tokens to a past and attends from them; where it fails, the past is as before.

    Args:
        query: (B, H, M, D) floating point.
        key, value: (B, Hk, M, D) of the same tokens.
        query_groups: (B, R, M, K) bool, their groups as queries, as many as ``past.rule`` says.
        key_groups: (B, R, M, K) or, where query heads have groups of their own, (B, Hk, M, K),
            likewise as keys.
        past: what was seen before; the tokens are added to it.
        scale: factor of the logits; None means 1/sqrt(D).
        real: (B, M) bool, False for padding; None: all are real.
        softcap: see :func:`focus.dense_attention`.
        extra_keys: (B, M, E) int64, positions of a few further keys of each query, counted from the
            first token of the past, each once, none in the query's window; -1: none.

    Returns:
        (B, H, M, D), with zeros for padding; and what counts the pairs, should somebody ask.

    Raises:
        ValueError: a gradient is asked for, groups do not fit the heads, the past has another
            dtype, or (on a CPU; elsewhere NaN comes out) a real token's query, key or value is not
            finite.
    """
    _check(query, key, value, query_groups, key_groups, past)
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    start = past.seen
    call = step.attend if step.computes(query) else _anywhere
    if triton.computes(query, key_groups):
        call = triton.attend
    try:
        out, total = call(
            query, key, value, query_groups, key_groups, past, extra_keys, real, scale, softcap
        )
    except BaseException:
        past.undo(start)
        raise
    batch, routings = query_groups.shape[:2]
    return out, partial(_counts, past.rule, batch, routings, start, past.seen, past.real, total)


def _anywhere(query: Tensor, key: Tensor, value: Tensor, query_groups: Tensor, key_groups: Tensor,
              past: Past, extra: Tensor | None, real: Tensor | None, scale: float,
              softcap: float | None) -> tuple[Tensor, Tensor]:  # fmt: skip
    """As :func:`focus.attention.native.step.attend`, by torch's own operations: all keys under a
    mask. Nothing is asked of another device than a CPU, so a step on a GPU waits for nothing."""
    query, key, value = query.detach(), key.detach(), value.detach()
    on_cpu = query.device.type == "cpu"  # elsewhere NaN comes out
    if on_cpu and not all(is_finite(each, real) for each in (query, key, value)):
        raise ValueError(step.REFUSED)
    past.append(key, value, key_groups, real)
    key, value = past.filed()[0][:, :, : past.seen - past.first].unbind(3)
    batch, heads, count, _ = query.shape
    part = max(1, MASK_ENTRIES // (batch * heads * key.shape[2]))
    outs, total = [], torch.zeros((), dtype=torch.int64, device=query.device)
    for start in range(0, count, part):
        own = slice(start, start + part)
        kept = _pairs(query_groups, extra, past, own)
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


def _check(query: Tensor, key: Tensor, value: Tensor, query_groups: Tensor, key_groups: Tensor,
           past: Past) -> None:  # fmt: skip
    queries, keys = query_groups.shape[1], key_groups.shape[1]
    heads, key_heads = query.shape[1], key.shape[1]
    if not (queries == heads and keys == key_heads) and not queries == keys in (1, key_heads):
        raise ValueError(
            f"key_groups: {keys} routings of keys and {queries} of queries for {key_heads} key "
            f"heads and {heads} query heads; give 1 or {key_heads} of both, or {heads} of queries "
            f"and {key_heads} of keys"
        )
    if learns(query, key, value):
        raise ValueError(
            "past_key_values: no gradient flows through a key/value cache of Focus; continue "
            "from it under torch.no_grad(), or pass the whole sequence with use_cache=False"
        )
    if not query.dtype == key.dtype == value.dtype == (past.dtype or query.dtype):
        dtypes = {str(each) for each in (query.dtype, key.dtype, value.dtype, past.dtype) if each}
        raise ValueError(
            f"past_key_values: {', '.join(sorted(dtypes))} together; a cache goes on in "
            "the dtype it was begun in, the same for queries, keys and values"
        )
