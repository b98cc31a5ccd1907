"""Validates params.yaml: `python -m experiments.settings [--scale NAME] [--targets core]`."""

from __future__ import annotations

import argparse
import sys

from experiments import settings
from experiments.command import reported
from experiments.settings import machine


@reported("params.yaml")
def main(arguments: list[str] | None = None) -> None:
    """The command line; `--targets core` prints what `dvc repro` takes to run the experiments of
    `make reproduce`."""
    parser = argparse.ArgumentParser(prog="python -m experiments.settings", description=__doc__)
    parser.add_argument("--scale", help="instead of the file's own")
    parser.add_argument("--targets", choices=["core"], help="print DVC targets instead")
    options = parser.parse_args(arguments)
    chosen = settings.load(scale=options.scale)
    if options.targets:
        # Readings, before which experiments are trained, and what needs no model.
        print(*(f"read@{block}" for block in chosen.core), "exactness", "speed")
        return
    print(f"params.yaml is valid: scale {chosen.scale}, seeds {', '.join(map(str, chosen.seeds))}")
    for block, cells in chosen.experiments.items():
        own = list(cells) == [block]  # else a sweep, of whose cells `start` and `--cell` name one
        names = chosen.cell(block).method.name if own else ", ".join(cells)
        print(f"  {block}: {names}")
    for line in impossible(chosen):
        print(f"warning: cannot be trained here: {line}")


def impossible(chosen: settings.Settings) -> list[str]:
    """What keeps experiments from being trained on this machine, which may be another's to do."""
    cells = [cell for cells in chosen.experiments.values() for cell in cells.values()]
    return list(dict.fromkeys(f"experiments.{cell.block}.{field}: {why}"
                              for cell in cells if cell.trains
                              for field, why in machine.reasons(cell, started=False)))  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
