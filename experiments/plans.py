"""What each stage's result depends on among the settings, and nothing else.

The stage ``plan`` writes these mappings as files, which are what dvc.yaml's stages depend on: a
change elsewhere in params.yaml, or in a scale, makes no stage run again.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from experiments.settings import Experiment, Settings

MEASUREMENTS = ("exactness", "speed", "decode", "prefill", "continuation")
# Of a cell, what its trained weights do not depend on; and of one that is read, its readings.
UNTRAINED = ("budgets", "seeds", "readings", "against", "core")
UNREAD = ("readings", "against", "core")
TIMED = ("decode", "prefill", "continuation", "speed")


def measurement(name: str, chosen: Settings) -> dict[str, Any]:
    """The settings of a measurement without training, as its run.json has them too."""
    block = getattr(chosen, name)
    own: dict[str, Any] = {"seed": chosen.seed, name: block.plain()}
    if name in TIMED:
        own["threads"] = chosen.threads
    if name in ("prefill", "continuation"):
        own |= {"intervals": chosen.intervals.plain(), "texts": texts([block.texts], chosen)}
    return own


def training(block: str, seed: int, chosen: Settings) -> dict[str, Any]:
    """What the weights of a seed of an experiment depend on; of one that it does not ask for,
    nothing."""
    cells = [cell for cell in chosen.cells(block).values() if seed in cell.seeds]
    if not cells:
        return {"seed": seed, "asked": False}
    above = [start for cell in cells for start in starts(cell, seed, chosen)]
    return {
        "seed": seed, "asked": True, "cells": {cell.name: trained(cell) for cell in cells},
        "starts": {f"{cell.name} seed {number}": trained(cell) for cell, number in above},
        "texts": texts([cell.texts for cell in (*cells, *(each for each, _ in above))], chosen),
    }  # fmt: skip


def reading(block: str, chosen: Settings) -> dict[str, Any]:
    """What the readings of an experiment depend on beside its weights."""
    cells = chosen.cells(block)
    named = {name: chosen.readings[name] for cell in cells.values() for name in cell.readings}
    texts_of = [*(cell.texts for cell in cells.values()),
                *(text for each in named.values() for text in each.texts)]  # fmt: skip
    above = [start for cell in cells.values() for seed in cell.seeds
             for start in starts(cell, seed, chosen)]  # fmt: skip
    return {
        "cells": {name: less(cell, UNREAD) | {"readings": list(cell.readings)}
                  for name, cell in cells.items()},
        "starts": {f"{cell.name} seed {number}": trained(cell) for cell, number in above},
        "readings": {name: each.plain() for name, each in named.items()},
        "texts": texts(texts_of, chosen),
    }  # fmt: skip


def data(block: str, chosen: Settings) -> dict[str, Any]:
    """The model, the texts and the benchmarks that an experiment needs."""
    cells = chosen.cells(block).values()
    read = reading(block, chosen)
    trained_on = [text for cell in cells for seed in cell.seeds
                  for text in training(block, seed, chosen)["texts"]]  # fmt: skip
    generated = any(each["kind"] == "generation" for each in read["readings"].values())
    return {
        "models": sorted({cell.model for cell in cells}),
        "benchmarks": ["benchmarks"] if generated else [],
        "training": sorted(set(trained_on)),
        "reading": sorted(read["texts"]),
        "texts": texts([*trained_on, *read["texts"]], chosen),
        "allow_unpinned": chosen.fetch.allow_unpinned,
    }


def starts(cell: Experiment, seed: int, chosen: Settings) -> Iterator[tuple[Experiment, int]]:
    """The trained cells that a cell's model starts from, nearest first, each with the seed of it
    that is taken: the same where it has that, else its first."""
    while cell.start is not None:
        cell = chosen.cell(cell.start)
        seed = seed if seed in cell.seeds else cell.seeds[0]
        yield cell, seed


def trained(cell: Experiment) -> dict[str, Any]:
    """A cell's settings, as far as its weights depend on them."""
    return less(cell, UNTRAINED)


def less(cell: Experiment, fields: Iterable[str]) -> dict[str, Any]:
    """A cell's plain settings without some of them."""
    return {key: value for key, value in cell.plain().items() if key not in fields}


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
