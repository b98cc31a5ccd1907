"""The window alone, widened until it keeps as many pairs (StreamingLLM): no groups at all."""

from __future__ import annotations

from bisect import bisect_left
from functools import lru_cache
from typing import Any

from experiments.methods.fixed import Ruled
from experiments.settings.experiment import Budget


class Window(Ruled):
    """Window, sinks and keys found word for word; a budget widens the window, none leaves it as it
    stands."""

    name = "window"
    takes = "share"
    rule = "window"

    def fitted(self, tokens: int, budget: Budget | None) -> dict[str, int]:
        """The window; two groups, one of queries and one of keys."""
        own = self.settings
        if isinstance(budget, float):
            return {"num_groups": 2, "window": widened(tokens, own.window, own.sinks, budget)}
        return {"num_groups": 2}

    @classmethod
    def check(cls, settings: Any, budget: Budget | None, path: str) -> None:
        """A share, or none."""
        if budget is not None:
            super().check(settings, budget, path)


@lru_cache
def widened(tokens: int, window: int, sinks: int, share: float) -> int:
    """The smallest window that keeps at least a share of the pairs beyond another one.

    Args:
        tokens: of the text.
        window, sinks: by which pairs are distant.
        share: above 0, at most 1.
    """
    distant = beyond(tokens, window, sinks)
    if not distant:
        return window
    wider = range(window, tokens + 1)
    at = bisect_left(wider, True, key=lambda w: 1 - beyond(tokens, w, sinks) / distant >= share)
    return wider[at]


def beyond(tokens: int, window: int, sinks: int) -> int:
    """Causal pairs that neither the window nor the sinks hold."""
    last = max(0, tokens - window - sinks)  # of the last query; one less for each before it
    return last * (last + 1) // 2
