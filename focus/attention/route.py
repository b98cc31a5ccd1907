"""Memberships from hidden states by compiled code: one call on CPU, one kernel on CUDA.

Shape suffixes: B batch, T tokens, E model dimension, S sides, R routing dimension, Hq and Hr
routings of queries and keys, K groups.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from focus.attention.native import project
from focus.attention.native import route as native
from focus.attention.triton import route as triton
from focus.scores import Prepared

FLOATS = (torch.float32, torch.bfloat16, torch.float16)


def computes(hidden_BTE: Tensor, dim: int, groups: int) -> bool:
    """Whether there is compiled code for hidden states of this device and dtype, and routers of
    this size."""
    if hidden_BTE.dtype not in FLOATS or torch.compiler.is_compiling():
        return False
    if hidden_BTE.is_cpu:
        return native.library() is not None
    return hidden_BTE.is_cuda and triton.computes(dim, groups)


def route(hidden_BTE: Tensor, ready: Prepared, potentials: Tensor, query_top: int, key_top: int,
          taken_at: Tensor | None = None,
          heavy: tuple[Tensor, Tensor] | None = None) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Memberships (B, Hq, T, K) of queries and (B, Hr, T, K) of keys, bool; K + 1 groups where
    there are heavy hitters (see :func:`focus.groups.with_heavy`).

    Args:
        hidden_BTE: such as :func:`computes` allows.
        ready: the router's parameters, float32; potentials: (S, Hr, K) float32, in place of its.
        query_top, key_top: groups of a query and of a key.
        taken_at: (Hq, K) float32, rising: the ``query_top`` from which on a routing takes its n-th
            group; None: every one takes ``query_top``.
        heavy: weight (Hr, E) and bias (Hr,), float32, of the scores that tell heavy hitters.
    """
    batch, tokens, width = hidden_BTE.shape
    centroids, cosine = ready.centroids, ready.cosine
    sides, heads, _, groups = centroids.shape
    columns = groups + (heavy is not None)
    size = batch, heads * max(1, sides - 1), tokens, columns
    query = hidden_BTE.new_empty(size, dtype=torch.bool)  # torch's default device may be another
    key = hidden_BTE.new_empty(batch, heads, tokens, columns, dtype=torch.bool)
    hidden, projected, scores = hidden_BTE, None, None
    few = hidden.is_cpu and batch * tokens <= native.FEW
    if not few and project.computes(hidden):
        projected, scores = project.project(hidden, ready.projection, cosine, heavy)
    elif not few or (heavy is not None and not cosine):
        hidden = hidden.float()
        with torch.no_grad(), torch.autocast(hidden.device.type, enabled=False):
            states = F.layer_norm(hidden, (width,)) if cosine or heavy is not None else hidden
            projected = F.linear(states if cosine else hidden, ready.weight)
            scores = None if heavy is None else F.linear(states, *heavy)
    if projected is not None and hidden.is_cuda:
        triton.choose(projected, centroids, potentials, query_top, key_top, cosine, taken_at,
                      scores, query, key)  # fmt: skip
    else:
        with torch.no_grad():
            weight = ready.weight if projected is None else None
        native.choose(hidden if weight is None else hidden.float(), projected, weight, centroids,
                      potentials, query_top, key_top, cosine, taken_at, heavy, scores, query,
                      key)  # fmt: skip
    return query, key
