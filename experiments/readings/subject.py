"""What is read: one cell's trained model, of one seed, built when the first part needs it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import product
from typing import Any, NamedTuple

from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

import focus
from experiments import texts, trained
from experiments.methods.base import Counting, Method
from experiments.settings import Budget, Experiment, Settings, Windows
from focus.density import PairCounts

Rows = list[dict[str, Any]]
Part = tuple[str, Callable[[], Rows]]  # a name that is the same in every run, and its rows
Documents = list[tuple[dict[str, Any], Tensor]]


class Condition(NamedTuple):
    """What a model is read under: ``full`` (attention), ``soft`` (the training gate) or ``hard``
    (the method at a budget)."""

    name: str
    budget: Budget | None = None

    def __str__(self) -> str:
        return f"{self.name}.{self.budget}"


SOFT = Condition("soft")


@dataclass(frozen=True)
class Subject:
    """A cell and a seed, under a reading."""

    cell: Experiment
    seed: int
    reading: Windows
    chosen: Settings

    @cached_property
    def _built(self) -> trained.Built:
        return trained.build(self.cell, self.seed, self.chosen)

    @property
    def model(self) -> PreTrainedModel:
        """In evaluation mode."""
        return self._built.model

    @property
    def tokenizer(self) -> PreTrainedTokenizerBase:
        """The model's."""
        return self._built.tokenizer

    @property
    def method(self) -> Method:
        """The cell's, installed."""
        return self._built.method

    @property
    def budgets(self) -> tuple[Budget | None, ...]:
        """The cell's, or the method as its own settings have it."""
        return self.cell.budgets or (None,)

    def applied(self, budget: Budget | None) -> AbstractContextManager[Counting]:
        """The model under the method at a budget."""
        return self.method.applied(self.model, self.cell.aim(budget))

    @contextmanager
    def full(self) -> Iterator[Counting]:
        """The model that the method was put on, with full attention."""
        attached = hasattr(self.model, "focus_state")
        with focus.mode(self.model, "full") if attached else nullcontext():
            yield lambda: PairCounts(0, 0, 0, 0)

    def documents(self, name: str, reading: Windows | None = None) -> Documents:
        """The documents of a kind of text that the reading takes, or another one: the columns that
        say which it is, and its windows (N, T)."""
        found = texts.reading_windows(reading or self.reading, name, self.cell.model, self.chosen)
        return [({"texts": name, "document": document.title, "sha": document.sha}, windows)
                for document, windows in found]  # fmt: skip

    def row(self, how: Condition, **more: Any) -> dict[str, Any]:
        """The columns that say what was read."""
        known = {"experiment": self.cell.block, "cell": self.cell.name, "seed": self.seed,
                 "method": self.cell.method.name, "condition": how.name,
                 "budget": label(how.budget)}  # fmt: skip
        hard = how.name == "hard"
        told = self.method.describe(self.cell.aim(how.budget)) if hard else {}
        return {**known, **{key: told.get(key) for key in DESCRIBED}, **more}


DESCRIBED = ("K", "top_k", "probe", "ngram", "window", "sinks", "balance")


def every(rows: Callable[..., Rows], subject: Subject, reading: Any,
          *axes: Iterable[Any]) -> Iterator[Part]:  # fmt: skip
    """A part for each point of the axes, which the rows are of."""
    for point in product(*axes):
        yield ".".join(map(str, point)), partial(rows, subject, reading, *point)


def label(budget: Budget | None) -> str:
    """A budget as rows name it: a share, a mask's name, or ``own``."""
    return "own" if budget is None else str(budget)
