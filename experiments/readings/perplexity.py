"""Loss of each document: under the method at every budget, under its training gate, or, of full
attention, as it is."""

from __future__ import annotations

from collections.abc import Iterator

from experiments.readings.scoring import score
from experiments.readings.subject import SOFT, Condition, Part, Rows, Subject, every
from experiments.settings import Perplexity


def parts(subject: Subject, reading: Perplexity) -> Iterator[Part]:
    """A part a kind of text and condition."""
    return every(rows, subject, reading, reading.texts, conditions(subject, reading.soft))


def conditions(subject: Subject, soft: bool = False) -> list[Condition]:
    """What a model is read under; with its training gate, where that is asked for and there."""
    if subject.cell.method.name == "full":
        return [Condition("full")]
    gate = [SOFT] if soft and subject.cell.method.name == "focus" else []
    return [*gate, *(Condition("hard", budget) for budget in subject.budgets)]


def rows(subject: Subject, reading: Perplexity, name: str, how: Condition) -> Rows:
    """A row a document."""
    found = []
    with subject.entered(how) as counting:
        for which, windows in subject.documents(name):
            own = score(subject.model, windows, reading.score_from, counting)
            found.append(subject.row(how, **which, **own.row))
    return found
