"""What a method is: a way of attending that a model runs under, at a budget of pairs."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, ClassVar

from torch import Tensor
from transformers import PreTrainedModel

from experiments.settings.experiment import Budget, Training
from experiments.settings.schema import Frozen, parse
from focus.density import PairCounts

Counting = Callable[[], PairCounts]


class Method(ABC):
    """One way of attending, for one seed.

    Every method takes the same model and the same budget (a share of the pairs beyond the window
    and the sinks, which it must not exceed by choice), and counts the pairs that it kept alike.

    Attributes:
        name: its file's.
        Settings: fields of ``method`` in params.yaml beside the name.
    """

    name: ClassVar[str]

    class Settings(Frozen):
        """Fields of the method's own; none."""

    def __init__(self, settings: Any, seed: int) -> None:
        self.settings, self.seed = settings, seed

    def install(self, model: PreTrainedModel) -> None:
        """Adds what the method trains or needs to the model; once, before weights are loaded."""

    def calibrate(self, model: PreTrainedModel, windows: list[Tensor]) -> None:
        """Lets an untrained method find what it needs on training windows (1, T)."""

    def training(self, model: PreTrainedModel, step: int,
                 regime: Training) -> AbstractContextManager[Any]:  # fmt: skip
        """What a training step runs in; as the method is applied, where nothing is said here."""
        return nullcontext()

    @abstractmethod
    def applied(self, model: PreTrainedModel,
                budget: Budget | None) -> AbstractContextManager[Counting]:  # fmt: skip
        """The model under the method; the call that it gives counts the last forward's pairs.

        Args:
            budget: None where the method's own settings say all.
        """

    def soft(self, model: PreTrainedModel) -> AbstractContextManager[Any] | None:
        """The model under the gate that training ends with; None: the method has none."""
        return None

    def describe(self, budget: Budget | None) -> dict[str, Any]:
        """Columns of a row of results: what the budget came to (K, top_k, probe, window ...)."""
        return {}

    @classmethod
    def check(cls, settings: Any, budget: Budget | None, path: str) -> None:
        """Raises ValueError, starting with ``path``, where the method cannot keep the budget."""


def built(kind: type[Method], fields: dict[str, Any], seed: int) -> Method:
    """A method from the fields of its block; ValueError by field name."""
    return kind(parse(kind.Settings, fields, "method"), seed)
