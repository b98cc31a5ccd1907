"""Groups by position: token i is in group i mod K, so that a query meets every K-th key."""

from __future__ import annotations

from functools import lru_cache

from experiments.methods.base import MOST_GROUPS
from experiments.methods.fixed import Ruled
from experiments.methods.window import beyond
from experiments.settings.experiment import Budget


class Position(Ruled):
    """As many groups as keep no fewer pairs than the budget."""

    name = "position"
    rule = "position"

    def fitted(self, tokens: int, budget: Budget | None) -> dict[str, int]:
        """The number of groups."""
        own = self.settings
        return {"num_groups": groups_keeping(tokens, own.window, own.sinks, budget)}


@lru_cache
def groups_keeping(tokens: int, window: int, sinks: int, share: float) -> int:
    """The most groups that keep at least a share of the pairs beyond the window and the sinks."""
    distant = beyond(tokens, window, sinks)
    enough = (
        groups for groups in range(MOST_GROUPS, 1, -1)
        if not distant or _kept(tokens, window, sinks, groups) / distant >= share
    )  # fmt: skip
    return next(enough, 1)


def _kept(tokens: int, window: int, sinks: int, groups: int) -> int:
    """Distant pairs whose distance is a multiple of the number of groups."""
    first = -(-window // groups) * groups
    return sum(max(0, tokens - sinks - far) for far in range(first, tokens, groups))
