"""Calls the compiled routing: memberships from hidden states.

Shape suffixes: B batch, M tokens, E model dimension, S sides, R routing dimension, Hq and Hr
routings of queries and keys, K groups.
"""

from __future__ import annotations

import struct

import torch
import torch.nn.functional as F
from torch import Tensor

from focus.attention.native.build import library, needed

FEW = 16  # tokens; of more, a product of matrices makes the projections
_PROBLEM = struct.Struct("=8Q11q")  # as in route.cpp


def computes(hidden_BME: Tensor) -> bool:
    """Whether the kernel takes hidden states of this device and dtype."""
    known = hidden_BME.dtype in (torch.float32, torch.bfloat16, torch.float16)
    here = hidden_BME.device.type == "cpu" and not torch.compiler.is_compiling()
    return known and here and library() is not None


def route(hidden_BME: Tensor, weight: Tensor, centroids: Tensor, potentials: Tensor,
          query_top: int, key_top: int, cosine: bool,
          taken_at: Tensor | None = None) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Memberships (B, Hq, M, K) of queries and (B, Hr, M, K) of keys, bool.

    Args:
        hidden_BME: such as :func:`computes` allows.
        weight: (S * Hr * R, E); centroids: (S, Hr, R, K); potentials: (S, Hr, K), all float32.
        query_top, key_top: groups of a query and of a key.
        cosine: whether hidden states and projections are normalised.
        taken_at: (Hq, K) float32, rising: the ``query_top`` from which on a routing takes its n-th
            group; None: every one takes ``query_top``.

    Raises:
        MemoryError: there is no room for the projections.
    """
    batch, tokens, width = hidden_BME.shape
    sides, heads, dim, groups = centroids.shape
    query = torch.zeros(batch, heads * max(1, sides - 1), tokens, groups, dtype=torch.bool)
    key = torch.zeros(batch, heads, tokens, groups, dtype=torch.bool)
    hidden, projected = hidden_BME.float(), None
    if batch * tokens > FEW:
        states = F.layer_norm(hidden, (width,)) if cosine else hidden
        projected = F.linear(states, weight)
    tensors = (hidden, projected, weight, centroids, potentials, taken_at, query, key)
    held = [None if x is None else x.contiguous() for x in tensors]  # until the call has returned
    problem = _PROBLEM.pack(
        *[0 if x is None else x.data_ptr() for x in held], batch, tokens, width, sides, heads, dim,
        groups, query_top, key_top, cosine, torch.get_num_threads(),
    )  # fmt: skip
    if needed().focus_route(problem):
        raise MemoryError("routing: no memory for the projections; shorten the batch")
    return query, key
