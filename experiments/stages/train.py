"""Stage train: what an experiment trains, with one seed (:mod:`experiments.training`).

`python -m experiments.stages.train EXPERIMENT --seed N [--cell NAME]` writes
results/<scale>/EXPERIMENT/train/seedN/<cell>/: the adapter, train.csv (loss of every step) and
run.json. A seed that the experiment does not name, and an experiment that trains
nothing, leave a run.json that says so. With ``--cell`` one cell of a sweep is trained, so that
several can beside each other on a GPU; without it those are then found trained.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from experiments.command import reported
from experiments.record import ROOT, write_json

if TYPE_CHECKING:
    from experiments.settings import Experiment

PLANS = Path("data/plan")
SETTINGS = (Path("params.yaml"), Path("scales"))


@reported("train")
def main(arguments: list[str] | None = None) -> None:
    """The command line of the stage."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("experiment", help="a name under `experiments` in params.yaml")
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--cell", help="of a sweep, this cell alone")
    options = parser.parse_args(arguments)
    if options.cell is None and nothing(options.experiment, options.seed):
        return
    # What follows takes seconds to import, and most seeds of most experiments ask for nothing.
    import torch

    from experiments import lengths, plans, settings, training

    chosen = settings.load()
    lengths.refuse_block(options.experiment, chosen)
    own = chosen.cells(options.experiment).values()
    asked = {each.name: each for cell in own for each in (cell, *plans.above(cell, chosen))}
    for cell in asked.values():
        lengths.refuse_training(cell)
        refuse_targets(cell)
    for line in lengths.short(options.experiment, chosen):
        print(f"train: warning: {line}")
    torch.set_num_threads(min(chosen.threads, torch.get_num_threads()))  # or OMP_NUM_THREADS
    training.train(options.experiment, options.seed, chosen, only=options.cell)


def refuse_targets(cell: Experiment) -> None:
    """Refuses names of LoRA's targets that no module of the model has: peft refuses them where none
    is there, and passes over one that is not."""
    from experiments.costs import shapes
    from experiments.settings import Lora

    if not isinstance(cell.regime, Lora):
        return
    names = [f".{name}" for name, _ in shapes.build(shapes.config(cell.model)).named_modules()]
    absent = [each for each in cell.regime.targets
              if not any(name.endswith(f".{each}") for name in names)]  # fmt: skip
    if absent:
        raise ValueError(f"experiments.{cell.block}.regime.targets: {cell.model} has no module "
                         f"{', '.join(absent)}")  # fmt: skip


def nothing(block: str, seed: int) -> bool:
    """Whether the stage's plan, where it is not older than the settings, says that there is nothing
    to do; the run.json then says why."""
    path = PLANS / block / f"seed{seed}.json"
    if not path.is_file():
        return False
    files = [file for place in SETTINGS for file in (place, *place.glob("*")) if file.is_file()]
    plan = json.loads(path.read_text(encoding="utf-8"))
    if "status" not in plan or any(f.stat().st_mtime > path.stat().st_mtime for f in files):
        return False
    folder = ROOT / plan["scale"] / block / "train" / f"seed{seed}"
    shutil.rmtree(folder, ignore_errors=True)
    write_json(folder / "run.json", {"status": plan["status"]})
    return True


if __name__ == "__main__":
    sys.exit(main())
