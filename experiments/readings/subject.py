"""What is read: one cell's trained model, of one seed, built when the first part needs it.

Shapes: D windows, S sides, Hr routers a layer, T tokens, E model dimension, K groups.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import product
from types import ModuleType
from typing import Any, NamedTuple

import torch
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

import focus
from experiments import texts, trained
from experiments.methods.base import Counting, Method
from experiments.settings import Budget, Experiment, Settings, Windows
from focus.density import PairCounts
from focus.routing import Router
from focus.state import attached

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

    def entered(self, how: Condition) -> AbstractContextManager[Counting]:
        """The model under a condition."""
        if how.name == "hard":
            return self.method.applied(self.model, self.cell.aim(how.budget))
        return self._unmasked(how)

    @contextmanager
    def _unmasked(self, how: Condition) -> Iterator[Counting]:
        """What masks nothing counts nothing."""
        under: AbstractContextManager[Any] = nullcontext()
        if how.name == "soft":
            under = self.method.soft(self.model)
        elif hasattr(self.model, "focus_state"):
            under = focus.mode(self.model, "full")
        with under:
            yield lambda: PairCounts(0, 0, 0, 0)

    @torch.no_grad()
    def routed(self, ids: Tensor) -> list[tuple[Tensor, Tensor]]:
        """Every layer's balanced logits (D, S, Hr, T, K) under the training gate, and what its
        router was shown, (D, T, E), of windows (D, T); float32, on the CPU."""
        found: dict[Router, list[tuple[Tensor, Tensor]]] = {}

        def keep(router: Router, args: tuple[Any, ...], logits: Tensor) -> None:
            found.setdefault(router, []).append((logits.float().cpu(), args[0].float().cpu()))

        with ExitStack() as stack:
            stack.enter_context(self.entered(SOFT))
            for router in attached(self.model).routers.values():
                stack.enter_context(router.register_forward_hook(keep))
            for row in ids:
                self.model(row[None].to(self.model.device), use_cache=False)
        return [(torch.cat([logits for logits, _ in own]), torch.cat([shown for _, shown in own]))
                for own in found.values()]  # fmt: skip

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


def parts(kind: ModuleType, subject: Subject, reading: Any) -> Iterator[Part]:
    """A part for each point of the axes that a kind of reading names, which its rows are of: fields
    of its settings, and ``conditions`` (the kind's own, where it has some)."""
    under = getattr(kind, "conditions", conditions)
    axes = [under(subject, reading) if name == "conditions" else getattr(reading, name)
            for name in kind.AXES]  # fmt: skip
    for point in product(*axes):
        yield ".".join(map(str, point)), partial(kind.rows, subject, reading, *point)


def conditions(subject: Subject, reading: Any) -> list[Condition]:
    """What a model is read under; with its training gate, where that is asked for and there."""
    if subject.cell.method.name == "full":
        return [Condition("full")]
    gate = getattr(reading, "soft", False) and subject.cell.method.name == "focus"
    return [*([SOFT] if gate else []), *(Condition("hard", budget) for budget in subject.budgets)]


def label(budget: Budget | None) -> str:
    """A budget as rows name it: a share, a mask's name, or ``own``."""
    return "own" if budget is None else str(budget)
