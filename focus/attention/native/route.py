"""Calls the compiled routing: memberships from hidden states.

Shape suffixes: B batch, M tokens, E model dimension, S sides, R routing dimension, Hq and Hr
routings of queries and keys, K groups.
"""

from __future__ import annotations

import struct

import torch
import torch.nn.functional as F
from torch import Tensor

from focus.attention.native.build import library, places, run

FEW = 16  # tokens; of more, a product of matrices makes the projections
_PROBLEM = struct.Struct("=11Q12q")  # as in route.cpp


def computes(hidden_BME: Tensor) -> bool:
    """Whether the kernel takes hidden states of this device and dtype."""
    known = hidden_BME.dtype in (torch.float32, torch.bfloat16, torch.float16)
    here = hidden_BME.is_cpu and not torch.compiler.is_compiling()
    return known and here and library() is not None


def route(hidden_BME: Tensor, weight: Tensor, centroids: Tensor, potentials: Tensor,
          query_top: int, key_top: int, cosine: bool, taken_at: Tensor | None = None,
          heavy: tuple[Tensor, Tensor] | None = None) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Memberships (B, Hq, M, K) of queries and (B, Hr, M, K) of keys, bool; K + 1 groups where
    there are heavy hitters (see :func:`focus.groups.with_heavy`).

    Args:
        hidden_BME: such as :func:`computes` allows.
        weight: (S * Hr * R, E); centroids: (S, Hr, R, K); potentials: (S, Hr, K), all float32.
        query_top, key_top: groups of a query and of a key.
        cosine: whether hidden states and projections are normalised.
        taken_at: (Hq, K) float32, rising: the ``query_top`` from which on a routing takes its n-th
            group; None: every one takes ``query_top``.
        heavy: weight (Hr, E) and bias (Hr,), float32, of the scores that tell heavy hitters.
    """
    batch, tokens, width = hidden_BME.shape
    sides, heads, dim, groups = centroids.shape
    columns = groups + (heavy is not None)
    size = batch, heads * max(1, sides - 1), tokens, columns
    query = hidden_BME.new_empty(size, dtype=torch.bool)  # torch's default device may be another
    key = hidden_BME.new_empty(batch, heads, tokens, columns, dtype=torch.bool)
    hidden, projected, scores = hidden_BME.float(), None, None
    if batch * tokens > FEW or (heavy is not None and not cosine):
        with torch.no_grad(), torch.autocast("cpu", enabled=False):
            states = F.layer_norm(hidden, (width,)) if cosine or heavy is not None else hidden
            projected = F.linear(states if cosine else hidden, weight)
            scores = None if heavy is None else F.linear(states, *heavy)
    tensors = (hidden, projected, weight, centroids, potentials, taken_at, *(heavy or (None, None)),
               scores, query, key)  # fmt: skip
    held = [None if x is None else x.contiguous() for x in tensors]  # until the call has returned
    problem = _PROBLEM.pack(
        *places(held), batch, tokens, width, sides, heads, dim, groups, columns, query_top, key_top,
        cosine, torch.get_num_threads(),
    )  # fmt: skip
    run("focus_route", problem)
    return query, key
