"""Trains the cells of an experiment, with what they start from, and finds them trained.

Checkpoints lie outside DVC's outs, under checkpoints/, keyed by everything the run depends on: a
killed run goes on from the last one, a changed setting starts afresh. A cell that has been trained
under the same settings, on the same texts and from the same weights is left as it is; its run.json
tells the code, and whoever wants it trained by another deletes its adapter.
"""

from __future__ import annotations

import fcntl
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pandas as pd

from experiments import imports, plans, record, registry, trained
from experiments.record import Run
from experiments.regimes.base import Regime
from experiments.regimes.fitting import fit
from experiments.settings import Experiment, Settings
from experiments.settings.machine import refuse
from experiments.texts import streaming

CHECKPOINTS = Path("checkpoints")


def train(block: str, seed: int, chosen: Settings, only: str | None = None) -> None:
    """Trains every cell of an experiment that names the seed, and before it what it starts from:
    that is another stage of dvc.yaml, which then finds it done, but DVC does not know the order.

    Args:
        only: the one cell that is trained, of those that name the seed; None: every one.

    Raises:
        ValueError: settings that cannot be kept here, before anything runs; texts or weights that
            are missing; a loss that is not finite.
        RuntimeError: a frozen weight changed.
    """
    named = [cell for cell in chosen.cells(block).values() if seed in cell.seeds]
    if only is not None:
        named = [cell for cell in named if cell.name == only]
        if not named:
            cells = [cell.name for cell in chosen.cells(block).values() if seed in cell.seeds]
            raise ValueError(f"cell: {block} has no cell {only} of seed {seed}; it has "
                             f"{', '.join(cells) or 'none'}")  # fmt: skip
    starts = [each for cell in named for each in trained.before(cell, seed, chosen)]
    own = [(cell, seed) for cell in named if cell.trains]
    asked = {(cell.name, its_seed): cell for cell, its_seed in [*starts, *own]}
    for cell in asked.values():
        refuse(cell)
    for (_, its_seed), cell in asked.items():
        if record.first_process() or cell.regime.processes > 1:  # those beside it sit others out
            one(cell, its_seed, chosen)
    if not record.first_process() or only is not None:
        return
    folder = record.results(chosen) / block / "train" / f"seed{seed}"
    remove_others(folder, [cell.name for cell, _ in own])
    if not own:
        record.write_json(folder / "run.json", {"status": plans.status(block, seed, chosen)})


def remove_others(folder: Path, names: list[str]) -> None:
    """Removes what an earlier sweep left: all but what has one of these names."""
    for path in folder.glob("*"):
        if path.name not in names:
            shutil.rmtree(path) if path.is_dir() else path.unlink()


def one(cell: Experiment, seed: int, chosen: Settings) -> None:
    """Trains one cell, or finds it trained."""
    place = CHECKPOINTS / chosen.scale / cell.block / cell.name / f"seed{seed}"
    with alone(place):
        known = trained.settings_of(cell, seed, chosen)
        inputs = trained.inputs(cell, seed, chosen)
        folder = trained.folder(cell, seed, chosen)
        former = (record.of(folder) or {}).get("notes", {}).get("inputs")
        if former == inputs and trained.is_trained(cell, seed, chosen):
            print(f"train: {cell.name}, seed {seed}: is trained")
            return
        with Run(folder, known, [seed], cell.dtype) as run:
            kind: type[Regime] = registry.find("regime", cell.regime.name)
            regime = kind(cell, seed, chosen)
            checkpoint = place / trained.fingerprint(known, inputs)
            data = streaming.data_of(cell, seed, chosen)
            resumed = fit(regime, data, checkpoint)
            if record.first_process():
                shutil.rmtree(folder / "adapter", ignore_errors=True)
            regime.save(folder / "adapter")
            note(run, regime, resumed)
            if isinstance(data, streaming.StreamedData):
                run.table(data.seen(), "documents.csv")
            run.note("inputs", inputs)
            run.note("weights", trained.digests(folder / "adapter"))
            run.note("code", imports.code(plans.trainers(cell, chosen)))
        if record.first_process():
            shutil.rmtree(place, ignore_errors=True)


@contextmanager
def alone(folder: Path) -> Iterator[None]:
    """Of several runs that train the same, which two that start from it do, one at a time: the
    others then find it trained. The processes of one run come in together.

    The lock lies beside the folder and stays: with one that is removed, a run that waits for it and
    one that comes later would both go in.
    """
    if not record.first_process():
        yield
        return
    folder.parent.mkdir(parents=True, exist_ok=True)
    with folder.with_name(f"{folder.name}.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def note(run: Run, regime: Regime, resumed: int | None) -> None:
    """Losses, size and times of a finished training."""
    course = pd.DataFrame({"step": range(1, len(regime.losses) + 1), "loss": regime.losses})
    if regime.validation:
        course["validation_loss"] = course["step"].map(regime.validation)
    run.table(course, "train.csv")
    run.note("trained_parameters", regime.trained_parameters)
    run.note("frozen_sha256", regime.before)
    run.note("train_seconds", round(regime.timer.time_elapsed(), 3))
    run.note("resumed_from_step", resumed)
