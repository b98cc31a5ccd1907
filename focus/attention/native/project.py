"""Calls the compiled projections of bfloat16 hidden states.

Shape suffixes: B batch, T tokens, E model dimension, S sides, Hr routings of keys, R routing
dimension.
"""

from __future__ import annotations

import struct

import torch
from torch import Tensor

from focus.attention.native.build import library, places, run

_PROBLEM = struct.Struct("=6Q7q")  # as in project.cpp


def computes(hidden_BTE: Tensor) -> bool:
    """Whether this processor projects hidden states of this device, dtype and width."""
    if not hidden_BTE.is_cpu or hidden_BTE.dtype != torch.bfloat16:
        return False
    kernel = library()
    return kernel is not None and bool(kernel.focus_projects(hidden_BTE.shape[2]))


def project(hidden_BTE: Tensor, projection: Tensor, normed: bool,
            heavy: tuple[Tensor, Tensor] | None) -> tuple[Tensor, Tensor | None]:  # fmt: skip
    """Projections (B, T, S * Hr * R) of hidden states, normed or as they are, and where
    ``heavy`` is given the scores (B, T, Hr) of heavy hitters, of normed ones; float32.

    Args:
        hidden_BTE: such as :func:`computes` allows.
        projection: (S, Hr, E, R) float32; heavy: weight (Hr, E) and bias (Hr,), float32.
    """
    batch, tokens, width = hidden_BTE.shape
    (sides, routings, _, dim), heads = projection.shape, 0 if heavy is None else len(heavy[0])
    units = sides * routings
    projected = projection.new_empty(batch, tokens, units * dim)
    scores = None if heavy is None else projection.new_empty(batch, tokens, heads)
    tensors = hidden_BTE, projection, *(heavy or (None, None)), projected, scores
    held = [None if each is None else each.contiguous() for each in tensors]
    problem = _PROBLEM.pack(
        *places(held), batch * tokens, width, units, dim, heads, normed, torch.get_num_threads()
    )
    run("focus_project", problem)
    return projected, scores
