"""Memberships from hidden states by compiled code: one call on CPU, one kernel on CUDA.

Shape suffixes: B batch, T tokens, E model dimension, Hq and Hr routings of queries and keys, K
groups.
"""

from __future__ import annotations

import torch
from torch import Tensor

from focus.attention.native import route as native
from focus.attention.triton import route as triton
from focus.scores import RouterWeights

FLOATS = (torch.float32, torch.bfloat16, torch.float16)


def computes(hidden_BTE: Tensor, dim: int, groups: int) -> bool:
    """Whether there is compiled code for hidden states of this device and dtype, and routers of
    this size."""
    if hidden_BTE.dtype not in FLOATS or torch.compiler.is_compiling():
        return False
    if hidden_BTE.is_cpu:
        return native.library() is not None
    return hidden_BTE.is_cuda and triton.computes(dim, groups)


def route(hidden_BTE: Tensor, own: RouterWeights, query_top: int, key_top: int,
          taken_at: Tensor | None = None,
          heavy: tuple[Tensor, Tensor] | None = None) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Memberships (B, Hq, T, K) of queries and (B, Hr, T, K) of keys, bool; K + 1 groups where
    there are heavy hitters (see :func:`focus.groups.with_heavy`).

    Args:
        hidden_BTE: such as :func:`computes` allows.
        own: the router's parameters, float32.
        query_top, key_top: groups of a query and of a key.
        taken_at: (Hq, K) float32, rising: the ``query_top`` from which on a routing takes its n-th
            group; None: every one takes ``query_top``.
        heavy: weight (Hr, E) and bias (Hr,), float32, of the scores that tell heavy hitters.
    """
    batch, tokens, _ = hidden_BTE.shape
    sides, heads, groups, _ = own.centroids.shape
    columns = groups + (heavy is not None)
    size = batch, heads * max(1, sides - 1), tokens, columns
    query = hidden_BTE.new_empty(size, dtype=torch.bool)  # torch's default device may be another
    key = hidden_BTE.new_empty(batch, heads, tokens, columns, dtype=torch.bool)
    choose = triton.choose if hidden_BTE.is_cuda else native.choose
    choose(hidden_BTE, own, query_top, key_top, taken_at, heavy, query, key)
    return query, key
