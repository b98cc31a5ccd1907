"""Memberships from hidden states by compiled code: one call on CPU, one kernel on CUDA.

Shape suffixes: B batch, T tokens, E model dimension, Hq and Hr routings of queries and keys, K
groups, C those and that of the heavy hitters.
"""

from __future__ import annotations

import struct

import torch
import torch.nn.functional as F
from torch import Tensor

from focus.attention.native.build import library, places, run
from focus.attention.triton.call import MOST_GROUPS, installed, power
from focus.scores import RouterWeights, normalised

FLOATS = (torch.float32, torch.bfloat16, torch.float16)
MOST_DIM = 128  # on CUDA
TOKENS = 64  # of a program there
_PROBLEM = struct.Struct("=9Q13q")  # as in native/route.cpp


def computes(hidden_BTE: Tensor, dim: int, groups: int) -> bool:
    """Whether there is compiled code for hidden states of this device and dtype, and routers of
    this size."""
    if hidden_BTE.dtype not in FLOATS or torch.compiler.is_compiling():
        return False
    if hidden_BTE.is_cpu:
        return library() is not None
    return hidden_BTE.is_cuda and dim <= MOST_DIM and groups < MOST_GROUPS and installed()


def route(hidden_BTE: Tensor, own: RouterWeights, query_top: int, key_top: int,
          taken_at: Tensor | None = None,
          heavy: tuple[Tensor, Tensor] | None = None) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Memberships (B, Hq, T, C) of queries and (B, Hr, T, C) of keys, bool (see
    :func:`focus.groups.with_heavy`).

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
    choose = on_cuda if hidden_BTE.is_cuda else on_cpu
    choose(hidden_BTE, own, query_top, key_top, taken_at, heavy, query, key)
    return query, key


def on_cpu(hidden: Tensor, own: RouterWeights, query_top: int, key_top: int,
           taken_at: Tensor | None, heavy: tuple[Tensor, Tensor] | None, query: Tensor,
           key: Tensor) -> None:  # fmt: skip
    """Fills memberships query and key; other arguments as of :func:`route`."""
    (batch, tokens, width), own = hidden.shape, own.padded()
    sides, heads, groups, dim = own.centroids.shape
    hidden = hidden.float() if hidden.dtype == torch.float16 else hidden
    tensors = (hidden, own.projection, own.centroids, own.potentials, taken_at,
               *(heavy or (None, None)), query, key)  # fmt: skip
    held = [None if x is None else x.contiguous() for x in tensors]  # until the call has returned
    problem = _PROBLEM.pack(
        *places(held), batch, tokens, width, sides, heads, dim, groups, key.shape[3], query_top,
        key_top, own.cosine, hidden.dtype == torch.bfloat16, torch.get_num_threads(),
    )  # fmt: skip
    run("focus_route", problem)


def on_cuda(hidden: Tensor, own: RouterWeights, query_top: int, key_top: int,
            taken_at: Tensor | None, heavy: tuple[Tensor, Tensor] | None, query: Tensor,
            key: Tensor) -> None:  # fmt: skip
    """As :func:`on_cpu`, by Triton's kernel."""
    from focus.attention.triton import memberships

    (batch, heads, tokens, columns), key_heads = query.shape, key.shape[1]
    projected, scores = _projected(hidden.float(), own, heavy)
    centroids, potentials = own.columns, own.potentials
    sides, _, dim, groups = centroids.shape
    none = potentials  # in place of what is not read
    block = min(TOKENS, power(tokens))
    with torch.cuda.device_of(projected):
        memberships.choose[(-(-tokens // block), batch, heads + key_heads)](
            projected, centroids, potentials.contiguous(),
            none if taken_at is None else taken_at, none if scores is None else scores, query, key,
            tokens, query_top, key_top, heads, key_heads, sides, groups, R=dim, COSINE=own.cosine,
            ALLOCATED=taken_at is not None, HEAVY=scores is not None, BLOCK_T=block,
            BLOCK_R=power(dim), BLOCK_K=power(columns),
        )  # fmt: skip


def _projected(hidden: Tensor, own: RouterWeights,
               heavy: tuple[Tensor, Tensor] | None) -> tuple[Tensor, Tensor | None]:  # fmt: skip
    with torch.no_grad(), torch.autocast(hidden.device.type, enabled=False):
        states = normalised(hidden) if own.cosine or heavy is not None else hidden
        scores = None if heavy is None else F.linear(states, *heavy)
        return F.linear(states if own.cosine else hidden, own.weight), scores
