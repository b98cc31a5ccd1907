"""Calls the compiled routing.

Shape suffixes: B batch, T tokens, E model dimension, S sides, R routing dimension, Hq and Hr
routings of queries and keys, K groups, C those and that of the heavy hitters.
"""

from __future__ import annotations

import struct

import torch
from torch import Tensor

from focus.attention.native.build import library, places, run
from focus.scores import RouterWeights

__all__ = ["choose", "library"]
_PROBLEM = struct.Struct("=9Q13q")  # as in route.cpp


def choose(hidden_BTE: Tensor, own: RouterWeights, query_top: int, key_top: int,
           taken_at: Tensor | None, heavy: tuple[Tensor, Tensor] | None, query: Tensor,
           key: Tensor) -> None:  # fmt: skip
    """Fills memberships query (B, Hq, T, C) and key (B, Hr, T, C); arguments as of
    :func:`focus.attention.route.route`."""
    (batch, tokens, width), columns = hidden_BTE.shape, key.shape[3]
    own = own.padded()
    sides, heads, groups, dim = own.centroids.shape
    hidden = hidden_BTE.float() if hidden_BTE.dtype == torch.float16 else hidden_BTE
    tensors = (hidden, own.projection, own.centroids, own.potentials, taken_at,
               *(heavy or (None, None)), query, key)  # fmt: skip
    held = [None if x is None else x.contiguous() for x in tensors]  # until the call has returned
    problem = _PROBLEM.pack(
        *places(held), batch, tokens, width, sides, heads, dim, groups, columns, query_top, key_top,
        own.cosine, hidden.dtype == torch.bfloat16, torch.get_num_threads(),
    )  # fmt: skip
    run("focus_route", problem)
