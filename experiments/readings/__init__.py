"""How trained weights are read: a file a kind, each giving parts that a killed run goes on from."""

from __future__ import annotations

import importlib
from collections.abc import Iterator

from experiments.readings.subject import Part, Subject


def parts(subject: Subject) -> Iterator[Part]:
    """All parts of the subject's reading: a name, and a call that gives its rows."""
    reading = subject.reading
    kind = importlib.import_module(f"{__name__}.{reading.kind}")
    yield from kind.parts(subject, reading)
