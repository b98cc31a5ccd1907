"""Groups of tokens: from a router's logits to soft assignments and hard memberships.

Shape suffixes: B batch, S sides (those of queries, then the keys'; one where both are the same), Hr
routers a layer (1, or the key heads), Hq queries' routings (Hr, or the query heads), T tokens, K
groups.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from focus.config import FocusConfig

FEW = 4  # groups that a GPU finds sooner one by one than by sorting all


class Assignments(NamedTuple):
    """Soft group assignments of a layer's tokens: query (B, Hq, T, K), key (B, Hr, T, K), rows sum
    to one.

    ``key`` is the same tensor as ``query`` where a token has one set of scores.
    """

    query: Tensor
    key: Tensor


class Memberships(NamedTuple):
    """Hard group memberships: query (B, Hq, T, K) bool, key (B, Hr, T, K) bool or None where it
    equals ``query``."""

    query: Tensor
    key: Tensor | None

    @property
    def of_keys(self) -> Tensor:
        """Memberships as keys, also where they are the queries'."""
        return self.query if self.key is None else self.key


def assignments_of(logits_BSHrTK: Tensor, heavy_BHrT: Tensor | None = None) -> Assignments:
    """Soft assignments from a router's logits, and of the heavy hitters, where there are any."""
    assignments = torch.softmax(logits_BSHrTK, -1)
    found = Assignments(of_queries(assignments), assignments[:, -1])
    return found if heavy_BHrT is None else Assignments(*with_heavy(*found, heavy_BHrT))


def with_heavy(query: Tensor, key: Tensor, heavy_BHrT: Tensor) -> tuple[Tensor, Tensor]:
    """Assignments or memberships of K + 1 groups: the last is that of the heavy hitters, which are
    keys of no other; every query looks into it beside its own."""
    heavy = heavy_BHrT.unsqueeze(-1)
    key = torch.cat([key.masked_fill(heavy, 0), heavy.to(key.dtype)], -1)
    return torch.cat([query, torch.ones_like(query[..., :1])], -1), key


def memberships_of(logits_BSHrTK: Tensor, config: FocusConfig,
                   taken_at_HqK: Tensor | None = None) -> Memberships:  # fmt: skip
    """Hard memberships from a router's logits: ``top_k`` groups a query (by the router's
    ``taken_at`` on average alone), ``key_top_k`` a key."""
    top_k: int | Tensor = config.top_k
    if taken_at_HqK is not None:
        top_k = (taken_at_HqK <= config.top_k).sum(-1, keepdim=True)  # (Hq, 1), for all tokens
    query = top_k_groups(of_queries(logits_BSHrTK), top_k)
    if not config.separate_keys:
        return Memberships(query, None)
    return Memberships(query, top_k_groups(logits_BSHrTK[:, -1], config.key_top_k))


def of_queries(x_BSHrTK: Tensor) -> Tensor:
    """The queries' part of assignments or logits: (B, Hq, T, K), query heads in their order."""
    if x_BSHrTK.shape[1] == 1:
        return x_BSHrTK[:, 0]
    return x_BSHrTK[:, :-1].transpose(1, 2).flatten(1, 2)


def top_k_groups(assignments: Tensor, top_k: int | Tensor) -> Tensor:
    """The ``top_k`` largest entries of each row (one number, or one a row) as a bool mask of the
    same shape.

    Ties go to the lower group index, so exactly ``top_k`` groups are taken (method: hard mask).
    """
    if isinstance(top_k, Tensor):
        rank = assignments.argsort(dim=-1, descending=True, stable=True).argsort(-1)
        return rank < top_k.unsqueeze(-1)
    if top_k == 1:
        order = assignments.argmax(-1, keepdim=True)
    elif assignments.is_cuda and top_k <= FEW:
        taken = torch.zeros_like(assignments, dtype=torch.bool)
        for _ in range(top_k):
            largest = assignments.masked_fill(taken, -torch.inf).argmax(-1, keepdim=True)
            taken.scatter_(-1, largest, True)
        return taken
    else:
        order = torch.argsort(assignments, dim=-1, descending=True, stable=True)[..., :top_k]
    return torch.zeros_like(assignments, dtype=torch.bool).scatter_(-1, order, True)
