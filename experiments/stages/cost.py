"""What an experiment needs for a model at a scale, in seconds and without any weights.

`python -m experiments.stages.cost MODEL --scale cluster` prints parameters, memory of a process by
part in training and inference, operations, hours and devices; settings are those of the experiment
at that scale (params.yaml, scales/), with the model in the place of its own. `--all` writes
results/tables/plan.csv, a row a model and scale, which `python -m analysis` draws.

Training is counted under the gate `log`: steps under `straight_through` also run the hard mask once
forwards. Hours are operations over what the scale's machine does in one: two cores, as fast as the
results say they were (experiments/costs/machines.py), or an H100 that reaches a share of its peak,
a guess. `--tflops`, `--share` and `--gibibytes` are for another machine.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace
from typing import Any

import pandas as pd

from experiments import settings
from experiments.command import reported
from experiments.costs import shapes
from experiments.costs.estimate import Hardware, estimate
from experiments.costs.machines import TABLE, usual
from experiments.settings import SCALES
from experiments.sources.models import TINY

PARTS = {"weights": "weights and routers", "gathered": "gathered layers", "gradients": "gradients",
         "optimiser": "optimiser", "activations": "activations", "cache": "key/value cache",
         "total": "together"}  # fmt: skip


@reported("cost")
def main(arguments: list[str] | None = None) -> None:
    """The command line of the stage."""
    options = _parser().parse_args(arguments)
    if options.all:
        write(options)
        return
    if options.model is None:
        raise ValueError(f"model: name one of {', '.join(shapes.names())}, or give --all")
    chosen = settings.load(scale=options.scale)
    hardware = hardware_of(chosen.scale, options)
    row = estimate(options.model, chosen, options.experiment, hardware)
    print("\n".join(described(row, hardware)))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m experiments.stages.cost", description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument("model", nargs="?", help="a model that is fetched, or of models.yaml")
    parser.add_argument("--scale", help=f"one of {', '.join(SCALES)}; params.yaml's")
    parser.add_argument("--experiment", default="recipe", help="one that trains routers (recipe)")
    parser.add_argument("--all", action="store_true", help=f"every model and scale, to {TABLE}")
    usual = "(the scale's machine)"
    parser.add_argument("--gibibytes", type=float, help=f"memory of a device {usual}")
    parser.add_argument("--tflops", type=float, help=f"peak of a device {usual}")
    parser.add_argument("--share", type=float, help=f"of the peak that is reached {usual}")
    return parser


def hardware_of(scale: str, options: argparse.Namespace) -> Hardware:
    """The machine of a scale, with what the command line says of another."""
    told = {name: getattr(options, name) for name in ("tflops", "share")}
    given = {name: value for name, value in told.items() if value is not None}
    machine = Hardware(name="a machine of yours", reached="as given") if given else usual(scale)
    if options.gibibytes is not None:
        given["gibibytes"] = options.gibibytes
    return replace(machine, **given)


def write(options: argparse.Namespace) -> None:
    """Every model but the tiny ones at every scale but `smoke`, which only shows that stages
    run."""
    names = [name for name in shapes.names() if name not in TINY]
    levels = [settings.load(scale=scale) for scale in SCALES if scale != "smoke"]
    machines = {chosen.scale: hardware_of(chosen.scale, options) for chosen in levels}
    rows = [estimate(name, chosen, options.experiment, machines[chosen.scale])
            for name in names for chosen in levels]  # fmt: skip
    TABLE.parent.mkdir(parents=True, exist_ok=True)
    pd.DataFrame(rows).astype({"train_devices_needed": "Int64"}).to_csv(TABLE, index=False)


def described(row: dict[str, Any], hardware: Hardware) -> list[str]:
    """The row for people."""
    checkpointed = ", activations computed twice" if row["checkpoint_activations"] else ""
    lines = [
        f"{row['model']}, experiment {row['experiment']} at scale {row['scale']}",
        f"  {row['steps']:,} steps of {row['batch_size']} windows of {row['context']:,} tokens on "
        f"{row['devices']} device(s), {row['strategy']}, {row['precision']}{checkpointed}",
        "",
        f"  parameters        {row['parameters']:>18,}",
        f"  routers           {row['routers']:>18,}  {row['routers_percent']:.4f}% of them; "
        f"adapter {row['adapter'] / 2**20:,.1f} MiB",
        f"  the paper's       {row['paper_routers']:>18,}  {row['paper_routers_percent']:.4f}% "
        "(K = 4, R = 16, one a layer)",
        "",
        f"  {'GiB of a process':<22}{'training':>10}{'inference':>11}",
        *(_memory(row, part, words) for part, words in PARTS.items()),
        f"  {'devices to fit':<22}{row['train_devices_needed'] or 'none':>10}"
        f"{row['infer_devices_needed']:>11}   of {hardware.gibibytes:g} GiB",
    ]  # fmt: skip
    if row["train_host"]:
        lines.append(f"  main memory to load   {row['train_host'] / 2**30:>10,.1f}   of a machine")
    return [*lines, "",
            f"  a step {row['step_flops'] / 1e12:,.1f} TFLOP, the run {row['run_flops']:.2e} FLOP: "
            f"{row['hours']:,.2f} hours",
            f"  on {hardware.name}, at {hardware.share:.0%} of {hardware.tflops:.3g} TFLOP/s a "
            "device:", f"  {hardware.reached}",
            "  Without what the allocator, CUDA and communication need. Attention forms no T x T: "
            "a block of 128 rows at a time."]  # fmt: skip


def _memory(row: dict[str, Any], part: str, words: str) -> str:
    train, infer = (row.get(f"{phase}_{part}") for phase in ("train", "infer"))
    cells = ("" if value is None else f"{value / 2**30:,.2f}" for value in (train, infer))
    return f"  {words:<22}{next(cells):>10}{next(cells):>11}"


if __name__ == "__main__":
    sys.exit(main())
