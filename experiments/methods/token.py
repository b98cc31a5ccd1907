"""Groups by token identity, hashed: a query meets the keys of its own token and of some others."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from torch.nn.functional import one_hot
from transformers import PreTrainedModel

from experiments.methods.base import MOST_GROUPS
from experiments.methods.fixed import Ruled, hashed
from experiments.methods.window import beyond
from experiments.settings.experiment import Budget


class Token(Ruled):
    """As many groups as keep no fewer pairs than the budget of training windows: to count a text's
    own tokens first would let later ones decide what earlier ones meet."""

    name = "token"
    rule = "token"

    def __init__(self, settings: Any, seed: int) -> None:
        super().__init__(settings, seed)
        self._windows: list[Tensor] = []
        self._groups: dict[Budget | None, int] = {}

    def calibrate(self, model: PreTrainedModel, windows: list[Tensor]) -> None:
        """Token ids on which numbers of groups are chosen."""
        self._windows, self._groups = [each.cpu() for each in windows], {}

    def fitted(self, tokens: int, budget: Budget | None) -> dict[str, int]:
        """The number of groups; the length does not matter."""
        if budget not in self._groups:
            own = self.settings
            self._groups[budget] = groups_keeping(self._windows, own.window, own.sinks, budget)
        return {"num_groups": self._groups[budget]}


def groups_keeping(windows: list[Tensor], window: int, sinks: int, share: float) -> int:
    """The most groups that keep at least a share of the distant pairs of all windows (1, T).

    Raises:
        ValueError: no window is longer than the local window and the sinks.
    """
    if not any(each.shape[1] > window + sinks for each in windows):
        raise ValueError(f"calibrate: groups by token need windows of more than {window + sinks} "
                         "tokens to be chosen on")  # fmt: skip
    distant = sum(len(each) * beyond(each.shape[1], window, sinks) for each in windows)
    for groups in range(MOST_GROUPS, 1, -1):
        if sum(_kept(each, groups, window, sinks) for each in windows) / distant >= share:
            return groups
    return 1


def _kept(ids: Tensor, groups: int, window: int, sinks: int) -> int:
    """Distant pairs of windows (N, T) whose tokens are in one group."""
    own = one_hot(hashed(ids, groups), groups)
    keys = own.clone()
    keys[:, :sinks] = 0
    # Keys of each group that have left the window, at the queries that they have left.
    return int((keys.cumsum(1)[:, :-window] * own[:, window:]).sum())
