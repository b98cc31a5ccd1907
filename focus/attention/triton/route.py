"""Routing's call on CUDA.

Shape suffixes: B batch, T tokens, E model dimension, Hq and Hr routings of queries and keys, K
groups, C those and that of the heavy hitters.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from focus.attention.triton.call import MOST_GROUPS, installed, power
from focus.scores import RouterWeights, normalised

MOST_DIM = 128
TOKENS = 64  # of a program


def computes(dim: int, groups: int) -> bool:
    """Whether the kernel takes routers of this size."""
    return dim <= MOST_DIM and groups < MOST_GROUPS and installed()


def choose(hidden_BTE: Tensor, own: RouterWeights, query_top: int, key_top: int,
           taken_at: Tensor | None, heavy: tuple[Tensor, Tensor] | None, query: Tensor,
           key: Tensor) -> None:  # fmt: skip
    """Fills memberships query (B, Hq, T, C) and key (B, Hr, T, C); arguments as of
    :func:`focus.attention.route.route`."""
    from focus.attention.triton import memberships

    (batch, heads, tokens, columns), key_heads = query.shape, key.shape[1]
    projected, scores = _projected(hidden_BTE.float(), own, heavy)
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
