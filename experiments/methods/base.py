"""What a method is: a way of attending that a model runs under, at a budget of pairs."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, ClassVar, Literal

from torch import Tensor
from transformers import PreTrainedModel

from experiments.settings.experiment import Budget, Experiment, Mask, Training
from experiments.settings.schema import Count, Frozen, Share, Size, parse
from focus.density import PairCounts

Counting = Callable[[], PairCounts]
MOST_GROUPS = 64  # of the compiled kernel


class Near(Frozen):
    """Pairs that every method keeps, and by which distant ones are told.

    Attributes:
        window: tokens of the local window, the query's own among them.
        sinks: first tokens of a text, which are keys for everyone.
    """

    window: Count = 128
    sinks: Size = 4


class Beside(Near):
    """The same, with keys found word for word beside what the budget pays for, as the recipe has.

    Attributes:
        ngram, ngram_keys: as of :class:`focus.FocusConfig`; ``ngram: 0``: none.
        trained_at: share of the distant pairs under which a regime trains the model's own weights
            (null: for a window, as it stands).
    """

    ngram: Size = 3
    ngram_keys: Count = 4
    trained_at: Share | None = None


class Method(ABC):
    """One way of attending, for one seed.

    Every method takes the same model and the same budget, a share of the pairs beyond the window
    and the sinks, and counts the pairs that it kept alike. A rival does not exceed the share by
    choice; a control, which must not look worse than it is, keeps no fewer, where it can choose.
    Keys found word for word come on top, for all alike.

    Attributes:
        name: its file's.
        Settings: fields of ``method`` in params.yaml beside the name.
        takes: what a budget must be: a ``share`` of the distant pairs, one that ``groups`` can be
            as small as (of which there are at most :data:`MOST_GROUPS`), or ``nothing``.
        untrainable: why no weights can be trained under it; empty: they can.
        takes_routers: whether it goes on with the routers that a start has trained.
    """

    name: ClassVar[str]
    takes: ClassVar[Literal["share", "groups", "nothing"]] = "share"
    untrainable: ClassVar[str] = ""
    takes_routers: ClassVar[bool] = False

    class Settings(Frozen):
        """Fields of the method's own; none."""

    def __init__(self, settings: Any, seed: int) -> None:
        self.settings, self.seed = settings, seed

    def install(self, model: PreTrainedModel) -> None:  # noqa: B027 - most need nothing
        """Adds what the method trains or needs to the model; once, before weights are loaded."""

    def calibrate(  # noqa: B027 - most need nothing
        self, model: PreTrainedModel, windows: list[Tensor]
    ) -> None:
        """Lets an untrained method find what it needs on training windows (1, T)."""

    def training(self, model: PreTrainedModel, step: int,
                 regime: Training) -> AbstractContextManager[Any]:  # fmt: skip
        """What a training step runs in: here, the method as ``trained_at`` has it applied."""
        return self.applied(model, getattr(self.settings, "trained_at", None))

    @abstractmethod
    def applied(self, model: PreTrainedModel,
                budget: Budget | None) -> AbstractContextManager[Counting]:  # fmt: skip
        """The model under the method; the call that it gives counts the last forward's pairs.

        One at a time: not to be entered within another of the same model.

        Args:
            budget: None where the method's own settings say all.
        """

    def describe(self, budget: Budget | None) -> dict[str, Any]:
        """Columns of a row of results: what the budget came to in the last forward pass at it (K,
        top_k, probe, ngram, window, sinks, balance); here, that there is no mask."""
        return columns()

    @classmethod
    def check(cls, settings: Any, budget: Budget | None, path: str) -> None:
        """Raises ValueError, starting with ``path``, where the method cannot keep the budget."""
        cls.check_taken(budget, path)

    @classmethod
    def check_taken(cls, budget: Budget | None, path: str) -> None:
        """Raises ValueError where a budget is not of the kind that the method takes."""
        what = f"{path}: method {cls.name}"
        if cls.takes == "nothing":
            if budget is not None:
                raise ValueError(f"{what} has nothing to spend a budget on; name none")
        elif isinstance(budget, Mask):
            raise ValueError(f"{what} takes a share of the distant pairs, no mask")
        elif budget is None:
            raise ValueError(f"{what} needs a share of the distant pairs")
        elif cls.takes == "groups" and groups_within(budget, MOST_GROUPS) < 1:
            raise ValueError(f"{path}: a share of {budget} takes more than {MOST_GROUPS} groups")

    @classmethod
    def check_cell(cls, settings: Any, cell: Experiment, starts: Sequence[Experiment],
                   path: str) -> None:  # fmt: skip
        """Raises ValueError, by the field's name, where the method does not go with the rest.

        Args:
            cell: the experiment whose method it is.
            starts: what it starts from, nearest first.
            path: of the experiment.
        """
        if cell.trains and cls.untrainable:
            raise ValueError(f"{path}.regime.name: no weights can be trained under method "
                             f"{cls.name}: {cls.untrainable}")  # fmt: skip
        if cell.trains and isinstance(settings, Beside):
            cls.check(settings, settings.trained_at, f"{path}.method.trained_at")


def built(kind: type[Method], fields: dict[str, Any], seed: int) -> Method:
    """A method from the fields of its block; ValueError by field name."""
    return kind(parse(kind.Settings, fields, "method"), seed)


def groups_within(share: float, groups: int) -> int:
    """The most of so many balanced groups that hold no more than a share of the pairs."""
    return math.floor(share * groups + 1e-9)  # 0.29 * 100 is 28.999999999999996


def columns(K: int = 0, top_k: int = 0, probe: str = "none", ngram: int = 0, window: int = 0,
            sinks: int = 0, balance: str = "none") -> dict[str, Any]:  # fmt: skip
    """A description with every column; zero and ``none`` where there is no such thing."""
    return {"K": K, "top_k": top_k, "probe": probe, "ngram": ngram, "window": window,
            "sinks": sinks, "balance": balance}  # fmt: skip
