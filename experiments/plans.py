"""What each stage's result depends on among settings and code, and nothing else.

The stage ``plan`` writes these mappings as files, which are what dvc.yaml's stages depend on: a
change elsewhere in params.yaml, in a scale or in the code makes no stage run again.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from experiments import imports, trained
from experiments.benchmarks import files
from experiments.ruler import material
from experiments.settings import Experiment, Joint, Reading, Settings

MEASUREMENTS = ("exactness", "speed", "decode", "masks", "prefill", "continuation")
TIMED = ("speed", "decode", "masks", "prefill", "continuation")
WHOLE = ("prefill", "continuation")  # of a model that reads texts
STAGES = "experiments.stages"


def measurement(name: str, chosen: Settings) -> dict[str, Any]:
    """The settings of a measurement without training, as its run.json has them too."""
    block = getattr(chosen, name)
    own: dict[str, Any] = {"seed": chosen.seed, name: block.plain()}
    if name in TIMED:
        own["threads"] = chosen.threads
    if name in WHOLE:
        cells = [chosen.cell(each) for each in block.experiments]
        own |= {"intervals": chosen.intervals.plain(), "texts": texts([block.texts], chosen)}
        own |= {"weights": {each.name: trained.settings_of(each, each.seeds[0], chosen)
                            for each in cells}}  # fmt: skip
    return own


def of_measurement(name: str, chosen: Settings) -> dict[str, Any]:
    """A measurement's settings and code."""
    return measurement(name, chosen) | {"code": imports.code([f"{STAGES}.{name}"])}


def of_training(block: str, seed: int, chosen: Settings) -> dict[str, Any]:
    """What the weights of an experiment's seed depend on, those among them that it starts from;
    a status, where there are none. Code is no part of it: an edit must not cost hours of training;
    which code trained, run.json tells."""
    named = [cell for cell in chosen.cells(block).values() if seed in cell.seeds]
    asked = [cell for cell in named if cell.trains or cell.start]
    known = {cell.name: trained.settings_of(cell, seed, chosen) for cell in asked}
    on = [text for cell in asked for text in trained_on(cell, chosen)]
    if not asked:
        return {"status": status(block, seed, chosen), "scale": chosen.scale}
    return {"cells": known, "texts": texts(on, chosen)}


def status(block: str, seed: int, chosen: Settings) -> str:
    """Why there are no weights of an experiment's seed."""
    named = any(seed in cell.seeds for cell in chosen.cells(block).values())
    return "nothing to train" if named else "seed not asked for"


def of_reading(block: str, chosen: Settings) -> dict[str, Any]:
    """What an experiment's rows depend on beside its weights."""
    cells = chosen.cells(block)
    code = imports.code({name for cell in cells.values() for reading in cell.readings
                         for name in readers(cell, chosen.readings[reading], chosen)})  # fmt: skip
    return {
        "cells": {name: read_as(cell, chosen) for name, cell in cells.items()},
        "readings": {name: chosen.readings[name].plain()
                     for cell in cells.values() for name in cell.readings},
        "texts": texts(read_on(block, chosen), chosen),
        "code": code,
    }  # fmt: skip


def of_data(block: str, chosen: Settings) -> dict[str, Any]:
    """The sources and texts that an experiment needs, for training and for reading."""
    cells = chosen.cells(block).values()
    training = [text for cell in cells if cell.trains or cell.start
                for text in trained_on(cell, chosen)]  # fmt: skip
    reading = read_on(block, chosen)
    read = {name: chosen.readings[name] for cell in cells for name in cell.readings}
    benchmarks = {source for each in read.values() for source in sources_of(each)}
    return {
        "models": sorted({cell.model for cell in cells}),
        "benchmarks": sorted(benchmarks),
        "training": sorted(set(training)),
        "reading": sorted(set(reading)),
        "texts": texts([*training, *reading], chosen),
    }


def sources_of(reading: Reading) -> list[str]:
    """Sources that a reading takes its questions from."""
    if reading.kind == "ruler":
        return [material.SOURCE]
    return files.sources(reading.tasks) if reading.kind == "benchmarks" else []


def trained_on(cell: Experiment, chosen: Settings) -> list[str]:
    """Names of the texts that a cell's weights have seen, and those that it starts from."""
    return [cell.texts, *(each.texts for each in above(cell, chosen))]


def read_on(block: str, chosen: Settings) -> list[str]:
    """Names of the texts that an experiment is read on, and of those that its model has seen."""
    cells = chosen.cells(block).values()
    return [*(text for cell in cells for text in trained_on(cell, chosen)),
            *(text for cell in cells for name in cell.readings
              for text in chosen.readings[name].texts)]  # fmt: skip


def trainers(cell: Experiment, chosen: Settings) -> Iterator[str]:
    """Modules that train a cell."""
    yield "experiments.training"
    for each in (cell, *above(cell, chosen)):
        yield f"experiments.methods.{each.method.name}"
        if each.trains:
            yield f"experiments.regimes.{each.regime.name}"
        if isinstance(each.regime, Joint):
            yield f"experiments.mitigations.{each.regime.mitigation}"


def readers(cell: Experiment, reading: Reading, chosen: Settings) -> Iterator[str]:
    """Modules that do a reading of a cell."""
    yield from (f"{STAGES}.read", f"experiments.readings.{reading.kind}")
    yield from (name for name in trainers(cell, chosen) if name != "experiments.training")


def above(cell: Experiment, chosen: Settings) -> Iterator[Experiment]:
    """The cells that a cell's model starts from, nearest first."""
    while cell.start is not None:
        cell = chosen.cell(cell.start)
        yield cell


def read_as(cell: Experiment, chosen: Settings) -> dict[str, Any]:
    """What the rows of a cell depend on; what it stands beside, in tables, is no part of it."""
    plain = cell.plain()
    weights = {str(seed): trained.settings_of(cell, seed, chosen) for seed in cell.seeds}
    return {"weights": weights, **{name: plain[name] for name in ("budgets", "keeps", "readings")}}


def texts(names: Iterable[str], chosen: Settings) -> dict[str, Any]:
    """The blocks of texts by name, with those whose documents they must not hold."""
    found: dict[str, Any] = {}
    left = list(names)
    while left:
        name = left.pop()
        if name not in found:
            found[name] = chosen.texts[name].plain()
            left += chosen.texts[name].apart
    return found
