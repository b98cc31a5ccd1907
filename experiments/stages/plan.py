"""Writes what each stage depends on among settings and code: data/plan/.

`python -m experiments.stages.plan` resolves params.yaml under its scale (inheritance, sweeps,
overlay) and writes, with sorted keys,

- data/plan/<experiment>/data.json: texts and weights to have; seed<N>.json: of training;
  read.json: of reading (:mod:`experiments.plans`),
- data/plan/<measurement>.json: of a measurement without training.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from experiments import plans, settings
from experiments.command import reported
from experiments.record import write_text
from experiments.scale import DOWNLOADS
from experiments.settings import Settings

FOLDER = Path("data/plan")


@reported("params.yaml")
def main() -> None:
    """The command line of the stage."""
    DOWNLOADS.mkdir(parents=True, exist_ok=True)  # `dvc exp run -C` fails without
    for name, values in planned(settings.load()).items():
        write_text(FOLDER / name, json.dumps(values, indent=1, sort_keys=True) + "\n")


def planned(chosen: Settings) -> dict[str, dict[str, Any]]:
    """What the files hold, by name."""
    files = {f"{name}.json": plans.of_measurement(name, chosen) for name in plans.MEASUREMENTS}
    for block in chosen.experiments:
        files[f"{block}/data.json"] = plans.of_data(block, chosen)
        files[f"{block}/read.json"] = plans.of_reading(block, chosen)
        for seed in chosen.seeds:
            files[f"{block}/seed{seed}.json"] = plans.of_training(block, seed, chosen)
    return files


if __name__ == "__main__":
    sys.exit(main())
