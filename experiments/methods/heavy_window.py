"""A control of groups: the heavy hitters that a start has found, and a wider window in the place of
groups.

Shape suffixes: K groups.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from transformers import PreTrainedModel

import focus as library
from experiments.methods.base import Counting, columns
from experiments.methods.fixed import counted, refuse_sliding
from experiments.methods.focus import Focus
from experiments.methods.passes import Pass, watched
from experiments.methods.window import widened
from experiments.settings.experiment import Budget
from focus.routing import Memberships, Router
from focus.state import attached


class HeavyWindow(Focus):
    """No query looks into a group; heavy hitters stay on top of the budget, which widens the
    window."""

    name = "heavy_window"
    untrainable = "its window is no gate"

    def __init__(self, settings: Any, seed: int) -> None:
        super().__init__(settings, seed)
        self._windows: dict[Budget | None, int] = {}  # that budgets came to

    @contextmanager
    def applied(self, model: PreTrainedModel, budget: Budget | None) -> Iterator[Counting]:
        """Hard mode, with a window fitted to each text's length; a text that goes on from a cache
        keeps what its beginning had."""
        state, near = attached(model), (self.config.window, self.config.sinks)
        former = state.config

        def before(seen: Pass) -> None:
            if not seen.past:
                refuse_sliding(model, self.name, seen.tokens)
                self._windows[budget] = widened(seen.tokens, *near, budget)
                state.config = former.replace(window=self._windows[budget])

        with ExitStack() as stack:
            stack.callback(setattr, state, "config", former)
            for router in state.routers.values():
                stack.callback(router.register_forward_hook(heavy_alone).remove)
            stack.enter_context(library.mode(model, "hard", balance="causal"))
            last = stack.enter_context(watched(model, before))
            yield lambda: counted(model, last(), *near)

    def describe(self, budget: Budget | None) -> dict[str, Any]:
        """The window that it came to; no groups."""
        if budget not in self._windows:
            return {}
        return columns(ngram=self.config.ngram, window=self._windows[budget],
                       sinks=self.config.sinks, balance="causal")  # fmt: skip

    @classmethod
    def check(cls, settings: Any, budget: Budget | None, path: str) -> None:
        """A share of the distant pairs; heavy hitters there must be."""
        cls.check_taken(budget, path)
        if not settings.heavy_hitters:
            raise ValueError(f"{path}: method {cls.name} needs method.heavy_hitters, of a start")


def heavy_alone(router: Router, args: Any, found: Memberships) -> Memberships:
    """A router's answer, (..., K + 1), with queries in the last group alone, the heavy hitters'."""
    query = found.query.clone()
    query[..., :-1] = False
    return Memberships(query, found.of_keys)
