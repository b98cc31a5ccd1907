"""How trained weights are read: a file a kind, each giving parts that a killed run goes on from."""

from __future__ import annotations

from collections.abc import Iterator

from experiments.readings import copying, generation, leak, perplexity
from experiments.readings.subject import Part, Subject

KINDS = {"perplexity": perplexity, "copying": copying, "leak": leak, "generation": generation}


def parts(subject: Subject) -> Iterator[Part]:
    """All parts of the subject's reading: a name, and a call that gives its rows."""
    reading = subject.reading
    yield from KINDS[reading.kind].parts(subject, reading)
