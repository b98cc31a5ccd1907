"""Loss of each document: under the method at every budget, under its training gate, or, of full
attention, as it is."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager

from experiments import texts
from experiments.methods.base import Counting
from experiments.readings.scoring import score
from experiments.readings.subject import Part, Rows, Subject
from experiments.settings import Budget, Perplexity
from focus.density import PairCounts


def parts(subject: Subject, reading: Perplexity) -> Iterator[Part]:
    """A part a kind of text, condition and budget."""
    for name in reading.texts:
        for condition, budget in conditions(subject, reading):
            part = f"{name}.{condition}.{budget}"
            yield part, lambda n=name, c=condition, b=budget: rows(subject, reading, n, c, b)


def conditions(subject: Subject, reading: Perplexity) -> list[tuple[str, Budget | None]]:
    """What a model is read under."""
    if subject.cell.method.name == "full":
        return [("full", None)]
    gate = [("soft", None)] if reading.soft and subject.cell.method.name == "focus" else []
    return [*gate, *(("hard", budget) for budget in subject.budgets)]


def rows(subject: Subject, reading: Perplexity, name: str, condition: str,
         budget: Budget | None) -> Rows:  # fmt: skip
    """A row a document."""
    found = []
    documents = texts.reading_windows(reading, name, subject.cell.model, subject.chosen)
    with entered(subject, condition, budget) as counting:
        for document, windows in documents:
            own = score(subject.model, windows, reading.score_from, counting)
            which = {"texts": name, "document": document.title, "sha": document.sha}
            found.append(subject.row(condition, budget, **which, **own.row))
    return found


def entered(subject: Subject, condition: str,
            budget: Budget | None) -> AbstractContextManager[Counting]:  # fmt: skip
    """The model under a condition: ``full``, ``soft`` or ``hard``."""
    if condition == "hard":
        return subject.applied(budget)
    if condition == "full":
        return subject.full()
    return _gate(subject)


@contextmanager
def _gate(subject: Subject) -> Iterator[Counting]:
    """The training gate masks nothing, so it counts nothing."""
    gate = subject.method.soft(subject.model)
    if gate is None:
        raise ValueError(f"method {subject.cell.method.name} has no training gate to be read under")
    with gate:
        yield lambda: PairCounts(0, 0, 0, 0)
