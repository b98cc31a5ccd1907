"""Routers as they are drawn, in the place of trained ones, with potentials that balance them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal

import torch
from torch import Tensor
from transformers import PreTrainedModel

import focus
from experiments.methods.base import (
    MOST_GROUPS,
    Beside,
    Counting,
    Method,
    columns,
    groups_within,
)
from experiments.methods.fixed import rest, wearing
from experiments.settings.experiment import Budget
from experiments.settings.schema import Count
from focus.config import ROUTERS, FocusConfig
from focus.density import PairCounts
from focus.named import Adapter, new_routers
from focus.state import attached

RECIPE = FocusConfig.recipe()


class RandomSettings(Beside):
    """Of the recipe's routers.

    Attributes:
        num_groups: of the trained routers that they stand beside. Their queries take as many
            groups as those of trained ones at the same budget; how many groups there are then is
            found.
        routers: who has one.
    """

    num_groups: Count = RECIPE.num_groups
    routers: Literal[ROUTERS] = RECIPE.routers  # type: ignore[valid-type]


class Random(Method):
    """The most groups with which drawn routers keep no fewer pairs of training windows than the
    budget: they are found when a budget is first asked for, on the model as it then is."""

    name = "random"
    takes = "groups"
    Settings = RandomSettings
    untrainable = "its potentials are found on the trained model"

    def __init__(self, settings: Any, seed: int) -> None:
        super().__init__(settings, seed)
        self._windows: list[Tensor] = []
        self._drawn: dict[Budget | None, Adapter] = {}

    def install(self, model: PreTrainedModel) -> None:
        """Nothing but what lets routers be put in."""
        rest(model)

    def calibrate(self, model: PreTrainedModel, windows: list[Tensor]) -> None:
        """Token ids on which potentials and the number of groups are found."""
        self._windows, self._drawn = list(windows), {}

    @contextmanager
    def applied(self, model: PreTrainedModel, budget: Budget | None) -> Iterator[Counting]:
        """Hard mode with causal potentials.

        Raises:
            ValueError: no share, or :meth:`calibrate` has not been called.
        """
        self.check(self.settings, budget, "budget")
        if budget not in self._drawn:
            self._drawn[budget] = self._find(model, budget)
        with wearing(model, self._drawn[budget]), focus.mode(model, "hard"):
            yield lambda: PairCounts.total(focus.pair_counts(model).values())

    def _find(self, model: PreTrainedModel, share: float) -> Adapter:
        if not self._windows:
            raise ValueError("calibrate: random routers need training windows for their potentials")
        top_k = max(1, groups_within(share, self.settings.num_groups))
        most = max(top_k, min(MOST_GROUPS, int(top_k / share + 1e-9)))
        for groups in range(most, top_k, -1):
            adapter = self._draw(model, groups, top_k)
            with wearing(model, adapter):
                balance(model, self._windows)
                if kept(model, self._windows) >= share:
                    return adapter
        return self._draw(model, top_k, top_k)  # every pair

    def _draw(self, model: PreTrainedModel, groups: int, top_k: int) -> Adapter:
        own = self.settings.model_dump(exclude={"trained_at", "num_groups"})
        config = RECIPE.replace(**own, num_groups=groups, top_k=top_k)
        generator = torch.Generator().manual_seed(self.seed)
        routers = new_routers(config, attached(model).layers.values(), generator)
        for router in routers.values():
            router.requires_grad_(False)
        return Adapter(config, routers)

    def describe(self, budget: Budget | None) -> dict[str, Any]:
        """K and the mask that were found."""
        if budget not in self._drawn:
            return {}
        found = self._drawn[budget].config
        return columns(found.num_groups, found.top_k, found.probe, found.ngram, found.window,
                       found.sinks, found.balance)  # fmt: skip


def balance(model: PreTrainedModel, windows: list[Tensor]) -> None:
    """Lets untrained routers find their causal potentials as training would, without a step.

    Args:
        model: attached.
        windows: token ids (1, T), none shorter than there are groups.
    """
    routers = attached(model).routers

    def observe(index: int, hidden: Tensor, query: Tensor, key: Tensor) -> None:
        routers[index](hidden, learn=True)

    for router in routers.values():
        router.train()  # so that soft mode balances each window as training does
    try:
        with torch.no_grad(), focus.mode(model, "soft", tap=observe):
            for window in windows:
                model(window.to(model.device), use_cache=False)
    finally:
        for router in routers.values():
            router.eval()


def kept(model: PreTrainedModel, windows: list[Tensor]) -> float:
    """Share of the distant pairs that groups alone keep of windows (1, T); 1 where there are no
    such pairs."""
    counts: list[PairCounts | None] = []
    with torch.no_grad(), focus.mode(model, "hard", ngram=0):
        for window in windows:
            model(window.to(model.device), use_cache=False)
            counts += focus.pair_counts(model).values()
    pairs = PairCounts.total(counts)
    return pairs.distant_density if pairs.distant else 1.0
