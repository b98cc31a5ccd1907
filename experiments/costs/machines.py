"""The machine that an estimate is for: where it is known, the one that a scale's results come from.

Two cores have no data sheet that says what a training reaches on them. What they reached stands in
results: operations of the recipe's training (plan.csv) over the seconds that it took (run.json).
"""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import Any

import pandas as pd

from experiments import record
from experiments.costs.estimate import Hardware

TABLE = Path("results/tables/plan.csv")
MEASURED, EXPERIMENT = "laptop", "recipe"
ON_CORES = ("smoke", MEASURED)  # scales of that machine
SAME = ("steps", "batch_size", "context")  # of a regime: what the table's operations are of


def usual(scale: str) -> Hardware:
    """The machine of a scale: two cores, as measured, or an H100."""
    if scale not in ON_CORES:
        return Hardware()
    return measured() or Hardware(name=f"{Hardware.name} (no results tell of two CPU cores)")


def measured() -> Hardware | None:
    """The machine that the recipe was trained on; None: there are no results that tell."""
    folder = record.ROOT / MEASURED / EXPERIMENT / "train"
    found = [record.of(path.parent) or {} for path in folder.glob(f"*/{EXPERIMENT}/run.json")]
    runs = [run for run in found if "train_seconds" in run.get("notes", {})]
    flops = _flops(runs[0]["settings"]) if runs else None
    if flops is None:
        return None
    machine = runs[0]["hardware"]
    seconds = statistics.median(run["notes"]["train_seconds"] for run in runs)
    return Hardware(
        gibibytes=machine["memory_gb"], tflops=flops / seconds / 1e12, share=1.0,
        name=f"{machine['cpu']} of {machine['cores']} cores",
        reached=f"what training {EXPERIMENT} reached there ({folder}); other gates may be slower",
    )  # fmt: skip


def _flops(settings: dict[str, Any]) -> float | None:
    """Operations of a training with these settings, where the table has them."""
    if not TABLE.is_file():
        return None
    frame = pd.read_csv(TABLE)
    known = {"model": settings["model"], "scale": MEASURED, "experiment": EXPERIMENT,
             **{name: settings["regime"][name] for name in SAME}}  # fmt: skip
    rows = frame[(frame[list(known)] == pd.Series(known)).all(axis=1)]
    return float(rows["run_flops"].iloc[0]) if len(rows) else None
