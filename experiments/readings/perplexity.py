"""Loss of each document: under the method at every budget, under its training gate, or, of full
attention, as it is."""

from __future__ import annotations

from experiments.readings.scoring import score
from experiments.readings.subject import Condition, Rows, Subject
from experiments.settings import Perplexity

AXES = ("texts", "conditions")


def rows(subject: Subject, reading: Perplexity, name: str, how: Condition) -> Rows:
    """A row a document."""
    found = []
    with subject.entered(how) as counting:
        for which, windows in subject.documents(name):
            own = score(subject.model, windows, reading.score_from, counting)
            found.append(subject.row(how, **which, **own.row))
    return found
