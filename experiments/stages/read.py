"""Stage read: what an experiment's trained weights do, on documents that it was not trained on.

`python -m experiments.stages.read EXPERIMENT [--reading NAME]` does every reading that the
experiment names, for all its seeds, and writes results/<scale>/EXPERIMENT/read/NAME/: rows.csv (a
row a seed, condition, budget and document) and run.json. A reading whose weights, settings, texts
and code are the same as when it was done is left as it is; a killed one goes on from its last
finished part, and its run.json counts what the parts took that an earlier process made.
"""

from __future__ import annotations

import argparse
import hashlib
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from rich.progress import track

from experiments import imports, lengths, plans, record, registry, settings, texts, trained
from experiments.command import reported
from experiments.readings.subject import Subject, parts
from experiments.record import Run, results, write_json
from experiments.settings import Experiment, Settings, Windows
from experiments.sources.files import digest, sha256

CHECKPOINTS, ROWS = Path("checkpoints/read"), "rows.csv"


@reported("read")
def main(arguments: list[str] | None = None) -> None:
    """The command line of the stage."""
    parser = argparse.ArgumentParser(prog="python -m experiments.stages.read", description=__doc__)
    parser.add_argument("experiment")
    parser.add_argument("--reading", help="this one alone")
    options = parser.parse_args(arguments)
    chosen = settings.load()
    torch.set_num_threads(min(chosen.threads, torch.get_num_threads()))  # or OMP_NUM_THREADS
    read(options.experiment, chosen, options.reading)


def read(block: str, chosen: Settings, only: str | None = None) -> None:
    """Does the readings of one experiment."""
    cells = chosen.cells(block)
    wanted = dict.fromkeys(name for cell in cells.values() for name in cell.readings)
    if only is not None and only not in wanted:
        raise ValueError(f"experiments.{block}.readings: {only!r} is not among {list(wanted)}")
    for name in [only] if only else wanted:
        one_reading(block, name, [c for c in cells.values() if name in c.readings], chosen)


def one_reading(block: str, name: str, cells: list[Experiment], chosen: Settings) -> None:
    """Does one reading of all cells and seeds, unless it is there already."""
    reading, folder = chosen.readings[name], results(chosen) / block / "read" / name
    marks = fingerprints(cells, reading, chosen)
    if is_read(folder, marks):
        print(f"read: {block} {name}: is there")
        return
    for cell in cells:
        lengths.refuse(name, reading, cell.model)
    plain = {"reading": reading.plain(), "cells": {cell.name: cell.plain() for cell in cells}}
    seeds = sorted({seed for cell in cells for seed in cell.seeds})
    with Run(folder, plain, seeds, cells[0].dtype) as run:
        # One after the other: each holds a model.
        subjects = (Subject(cell, seed, reading, chosen) for cell in cells for seed in cell.seeds)
        found = [row for subject in subjects for row in rows(subject, name, marks, run)]
        run.note("sha256", sha256(run.table(pd.DataFrame(found), ROWS)))
        run.note("fingerprint", marks)
        run.note("opened", opened(reading, chosen))


def is_read(folder: Path, marks: dict[str, str]) -> bool:
    """Whether a folder has these rows, as they were written."""
    notes, path = (record.of(folder) or {}).get("notes", {}), folder / ROWS
    if notes.get("fingerprint") != marks or not path.is_file():
        return False
    same: bool = notes.get("sha256") in (None, sha256(path))  # records before 2026-11-26 have none
    if not same:
        print(f"read: {path} is not what was read: made again")
    return same


def rows(subject: Subject, name: str, marks: dict[str, str], run: Run) -> Iterable[dict[str, Any]]:
    """All rows of a cell and seed, from disk where an earlier process made them."""
    cell, mark = subject.cell, marks[f"{subject.cell.name}.{subject.seed}"]
    folder = CHECKPOINTS / subject.chosen.scale / cell.name / name / f"seed{subject.seed}-{mark}"
    label = f"read {cell.name} {name} seed {subject.seed}"
    kind = registry.find("reading", subject.reading.kind)
    for part, made in track(list(parts(kind, subject, subject.reading)), label):
        path = folder / f"{hashlib.sha256(part.encode()).hexdigest()[:16]}.json"
        found = record.read_json(path) or {}
        if "rows" in found:
            run.earlier(found.get("took"))
        else:
            with run.part() as took:
                found = {"part": part, "rows": made(), "took": took}
            write_json(path, found)
        yield from found["rows"]


def fingerprints(cells: list[Experiment], reading: Windows, chosen: Settings) -> dict[str, str]:
    """Names everything that each cell's and seed's rows depend on: weights, settings, texts, code.

    Raises:
        ValueError: weights or texts are missing.
    """
    marks = {}
    shared = [reading.plain(), [texts.fingerprint(name, reading.side) for name in reading.texts]]
    for cell in cells:
        budgets = [(str(budget), str(cell.aim(budget))) for budget in cell.budgets]
        code = imports.code(plans.readers(cell, reading, chosen))
        for seed in cell.seeds:
            weights = [digest(path) for path in trained.chain(cell, seed, chosen)]
            inputs = trained.inputs(cell, seed, chosen)
            marks[f"{cell.name}.{seed}"] = trained.fingerprint(
                shared, budgets, code, trained.settings_of(cell, seed, chosen), inputs, weights
            )
    return marks


def opened(reading: Windows, chosen: Settings) -> dict[str, Any]:
    """Which documents a reading looked at, by kind of text; whether they were test documents."""
    skipped = {"skip": reading.skip} if reading.skip else {}
    return {"side": reading.side, "final": reading.final, "documents": reading.documents, **skipped,
            "texts": {n: texts.fingerprint(n, reading.side) for n in reading.texts}}  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
