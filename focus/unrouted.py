"""Tokens of a cache whose groups nobody has asked for yet.

Shape suffixes: B batch, M new tokens, T tokens so far, E model dimension.
"""

from __future__ import annotations

import torch
from torch import Tensor

from focus.config import FocusConfig
from focus.groups import Memberships
from focus.routing import Router


def unasked(hidden: Tensor, router: Router, config: FocusConfig) -> Memberships:
    """Memberships of tokens (B, M, E) in no group, in the place of those that the window makes
    needless."""
    batch, tokens, _ = hidden.shape
    sides, heads, _, _ = router.centroids.shape
    size = batch, heads * max(1, sides - 1), tokens, config.all_groups
    query = torch.zeros(size, dtype=torch.bool, device=hidden.device)
    return Memberships(query, query[:, :heads] if config.separate_keys else None)


class Unrouted:
    """Hidden states of a cache's tokens, from its first on, while the window holds them all: until
    it leaves one behind nobody asks for groups, and then one call finds those of all."""

    def __init__(self) -> None:
        self.parts: list[Tensor] = []  # (B, M, E) each
        self.count = 0
        self.none: Memberships | None = None

    def groups(self, hidden: Tensor, router: Router, config: FocusConfig) -> Memberships:
        """Of tokens (B, M, E), in the place of their groups: the last ones again where they fit."""
        none = self.none
        if none is None or none.query.shape[::2] != hidden.shape[:2]:
            self.none = none = unasked(hidden, router, config)
        return none

    def extend(self, hidden: Tensor, seen: int) -> None:
        """Tokens that follow the first ``seen``; of a pass that failed, some may be here."""
        if seen < self.count:
            self.crop(seen)
        own = hidden.detach() if hidden.requires_grad else hidden
        self.parts.append(own.clone())  # the model may use its memory again
        self.count += hidden.shape[1]

    def joined(self) -> Tensor:
        """All, (B, T, E)."""
        if len(self.parts) > 1:
            self.parts = [torch.cat(self.parts, 1)]
        return self.parts[0]

    def crop(self, seen: int) -> None:
        """Forgets all but the first ``seen`` tokens."""
        if seen < self.count:
            self.parts, self.count = [self.joined()[:, :seen]] if seen else [], seen

    def select(self, index: Tensor) -> None:
        """Keeps the sequences named."""
        if self.parts:
            own = self.joined()
            self.parts = [own.index_select(0, index.to(own.device))]
