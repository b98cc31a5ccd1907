"""What no block of params.yaml can see alone: names that others have, and what fits together."""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import cache
from typing import TYPE_CHECKING, Any

from experiments import registry
from experiments.settings.experiment import Centroids, Experiment
from experiments.settings.measurements import Whole
from experiments.settings.resolve import near
from experiments.settings.schema import parse

if TYPE_CHECKING:
    from experiments.settings.file import Settings

OF_GROUPS = ("leak", "groups", "contents", "information")  # kinds of reading


def check(settings: Settings) -> None:
    """Refuses what no block can see alone: ValueError by the field's full name."""
    _check_names(settings)
    for block, cells in settings.experiments.items():
        for cell in cells.values():
            path = f"experiments.{block}"
            _check_model(path, cell.model)
            _known(f"{path}.texts", [cell.texts], settings.texts)
            _known(f"{path}.readings", cell.readings, settings.readings)
            _known(f"{path}.against", cell.against, settings.experiments)
            _check_against(f"{path}.against", cell, settings)
            if set(cell.seeds) - set(settings.seeds):
                raise ValueError(f"{path}.seeds: {list(cell.seeds)} are not all in seeds = "
                                 f"{list(settings.seeds)}")  # fmt: skip
            _check_method(path, cell, settings)
            _check_readings(path, cell, settings)
    for name, reading in settings.readings.items():
        _known(f"readings.{name}.texts", reading.texts, settings.texts)
        if reading.side == "train":
            _whole(f"readings.{name}.texts", reading.texts, settings)
    for name, texts in settings.texts.items():
        _known(f"texts.{name}.apart", texts.apart, settings.texts)
    for name in ("prefill", "continuation"):
        _known(f"{name}.texts", [getattr(settings, name).texts], settings.texts)
        _whole(f"{name}.texts", [getattr(settings, name).texts], settings)
        _check_timed(f"{name}.experiments", getattr(settings, name), settings)


def _known(path: str, names: Any, known: Mapping[str, Any]) -> None:
    for name in names:
        if name not in known:
            raise ValueError(f"{path}: {name!r} is unknown; {near(name, known)}")


def _check_against(path: str, cell: Experiment, settings: Settings) -> None:
    for name in cell.against:
        if name == cell.block:
            raise ValueError(f"{path}: {name} is the experiment itself")
        theirs = {each for other in settings.cells(name).values() for each in other.readings}
        if cell.readings and not theirs & set(cell.readings):
            raise ValueError(f"{path}: {name} has none of the readings {', '.join(cell.readings)}, "
                             "so there is nothing to compare; add one to its own")  # fmt: skip


def _check_timed(path: str, plan: Whole, settings: Settings) -> None:
    for name in plan.experiments:
        try:
            cell = settings.cell(name)
        except ValueError as error:
            raise ValueError(f"{path}: {name}: {str(error).split(': ', 1)[1]}") from error
        if cell.model != plan.model or cell.method.name != "focus" or not cell.trains:
            raise ValueError(f"{path}: {name} does not train routers of {plan.model}")


def _check_model(path: str, name: str) -> None:
    """A model of the list, one of random weights, or a folder of the user's own."""
    from experiments.sources.catalogue import TINY, override

    if name.startswith(TINY) or name in _models() or override(name) is not None:
        return
    own = "" if os.environ.get("FOCUS_DATA") else ", which is not set"
    raise ValueError(
        f"{path}.model: {name!r} is unknown; there are {', '.join(_models())}. Add one to "
        "experiments/sources/sources.yaml, with role: model, or put a transformers folder of that "
        f"name into the folder FOCUS_DATA{own}"
    )


@cache
def _models() -> dict[str, Any]:
    from experiments.sources.catalogue import sources

    return {name: row for name, row in sources().items() if row.role == "model"}


def _whole(path: str, names: Any, settings: Settings) -> None:
    for name in names:
        if settings.texts[name].streamed:
            raise ValueError(f"{path}: {name} is streamed; this needs whole training documents")


def _starts(path: str, cell: Experiment, settings: Settings) -> list[Experiment]:
    """What a cell starts from, and that from, nearest first; ValueError where that goes round."""
    found, names = [], [cell.name]
    while cell.start is not None:
        try:
            above = settings.cell(cell.start)
        except ValueError as error:
            why = str(error).split(": ", 1)[1]
            raise ValueError(f"{path}.start: {cell.start!r}: {why}") from error
        if above.name in names:
            raise ValueError(f"{path}.start: {' -> '.join([*names, above.name])} goes round")
        if above.model != cell.model:
            raise ValueError(f"{path}.start: {cell.start} is of {above.model}, not {cell.model}")
        found.append(above)
        names.append(above.name)
        cell = above
    return found


def _check_readings(path: str, cell: Experiment, settings: Settings) -> None:
    from experiments.benchmarks.files import TASKS
    from experiments.chat.questions import QUESTIONS
    from experiments.ruler.tasks import TASKS as LONG

    for name in cell.readings:
        kind = settings.readings[name].kind
        if kind == "chat" and settings.readings[name].questions > len(QUESTIONS):
            raise ValueError(f"readings.{name}.questions: there are {len(QUESTIONS)} of them")
        if known := {"benchmarks": TASKS, "ruler": LONG}.get(kind):
            _known(f"readings.{name}.tasks", settings.readings[name].tasks, known)
        if kind in OF_GROUPS and cell.method.name != "focus":
            raise ValueError(f"{path}.readings: {name} is of kind {kind}, for method focus alone")


def _check_method(path: str, cell: Experiment, settings: Settings) -> None:
    from experiments.methods.base import Method  # methods are built from settings
    from experiments.methods.focus import FOUND
    from experiments.selection.learned import Learned

    kind = registry.find("method", cell.method.name, f"{path}.method.name")
    own = parse(kind.Settings, cell.method.fields, f"{path}.method")
    if isinstance(cell.regime, Centroids) and cell.method.name != "focus":
        raise ValueError(f"{path}.regime.name: {cell.regime.name} trains routers; method "
                         f"{cell.method.name} has none")  # fmt: skip
    if cell.regime.name == "distil" and not issubclass(kind, Learned):
        raise ValueError(f"{path}.regime.name: distil trains networks that choose keys; method "
                         f"{kind.name} has none")  # fmt: skip
    kind.check_cell(own, cell, _starts(path, cell, settings), path)
    # Both look at training documents before anything is trained.
    looks = any(cell.method.fields.get(each) for each in FOUND)
    if kind.calibrate is not Method.calibrate or looks:
        _whole(f"{path}.texts", [cell.texts], settings)
    for number, budget in enumerate(cell.budgets):
        kind.check(own, cell.aim(budget), f"{path}.budgets[{number}]")
    if not cell.budgets:
        kind.check(own, None, f"{path}.budgets")


def _check_names(settings: Settings) -> None:
    """Every cell is found by its name alone."""
    blocks: dict[str, str] = {}
    for block, cells in settings.experiments.items():
        for name in cells:
            other = blocks.setdefault(name, block)
            if other != block or (name != block and name in settings.experiments):
                raise ValueError(f"experiments.{block}.sweep: {name} is another experiment's name")
