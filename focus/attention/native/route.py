"""Calls the compiled routing.

Shape suffixes: B batch, M tokens, E model dimension, S sides, R routing dimension, Hq and Hr
routings of queries and keys, K groups, C those and that of the heavy hitters.
"""

from __future__ import annotations

import struct

import torch
from torch import Tensor

from focus.attention.native.build import library, places, run

__all__ = ["FEW", "choose", "library"]
FEW = 16  # tokens; of more, a product of matrices makes the projections
_PROBLEM = struct.Struct("=11Q12q")  # as in route.cpp


def choose(hidden_BME: Tensor, projected: Tensor | None, weight: Tensor | None, centroids: Tensor,
           potentials: Tensor, query_top: int, key_top: int, cosine: bool, taken_at: Tensor | None,
           heavy: tuple[Tensor, Tensor] | None, scores: Tensor | None, query: Tensor,
           key: Tensor) -> None:  # fmt: skip
    """Fills memberships query (B, Hq, M, C) and key (B, Hr, M, C); arguments as of
    :func:`focus.attention.route.route`.

    Args:
        hidden_BME: float32, where the projections are made inside.
        projected: (B, M, S * Hr * R), None: of few tokens, made inside by ``weight``; scores:
            (B, M, Hr) of heavy hitters, where there are any, likewise.
    """
    (batch, tokens, width), columns = hidden_BME.shape, key.shape[3]
    sides, heads, dim, groups = centroids.shape
    tensors = (hidden_BME, projected, weight, centroids, potentials, taken_at,
               *(heavy or (None, None)), scores, query, key)  # fmt: skip
    held = [None if x is None else x.contiguous() for x in tensors]  # until the call has returned
    problem = _PROBLEM.pack(
        *places(held), batch, tokens, width, sides, heads, dim, groups, columns, query_top, key_top,
        cosine, torch.get_num_threads(),
    )  # fmt: skip
    run("focus_route", problem)
