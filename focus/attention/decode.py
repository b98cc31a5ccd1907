"""Attention of new tokens over a past, exactly as the hard mask says.

A query reads about k*T/K + window keys. On a CPU with a compiler one compiled call, and on CUDA
Triton's kernels, file the new tokens and read what each query keeps where it lies; elsewhere every
query reads all keys under a mask.

Shape suffixes: B batch, H query heads, Hk key heads, R routings of queries (1, Hk or H), M new
tokens, D head dimension, K groups, E further keys of a query.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from focus.attention.checks import is_finite, learns
from focus.attention.masked import masked
from focus.attention.native import step
from focus.attention.past import Past
from focus.attention.rule import Rule
from focus.attention.triton import step as triton
from focus.density import PairCounts, pairs_by_place

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
    """As :func:`focus.attention.native.step.attend`, by torch's own operations."""
    query, key, value = query.detach(), key.detach(), value.detach()
    on_cpu = query.device.type == "cpu"  # asking a device would wait for it; NaN comes out there
    if on_cpu and not all(is_finite(each, real) for each in (query, key, value)):
        raise ValueError(step.REFUSED)
    past.append(key, value, key_groups, real)
    return masked(query, query_groups, extra, past, scale, softcap)


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
