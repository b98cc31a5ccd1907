"""Memory of a process by model, as counted before any weights are there."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from analysis.figures import style
from analysis.results import Results
from analysis.rows import Missing, need, only

CAPTION = (
    "Counted, not measured: memory of one process by part. Left: routers of the experiment "
    "`recipe` are trained at scale cluster (8 devices, fsdp2, one window each of 4,096 tokens, or "
    "of the model's longest context, activations computed twice). Right: full attention reads "
    "one such window into a cache on one device. What an allocator, CUDA and communication "
    "need comes on top. Table: plan.csv, by `python -m experiments.stages.cost --all`."
)
SCALE, LIMIT = "cluster", 80
PARTS = {
    "weights": ("weights and routers", style.BLUE), "gathered": ("gathered layers", style.SKY),
    "gradients": ("gradients", style.RED), "optimiser": ("optimiser", style.ORANGE),
    "activations": ("activations", style.GREEN), "cache": ("key/value cache", style.PURPLE),
}  # fmt: skip
PHASES = {"train": "Training routers, 8 devices", "infer": "Reading, one device"}


def draw(results: Results) -> Figure:
    """A panel a phase and a bar a model."""
    path = results.base / "tables" / "plan.csv"
    if not path.is_file():
        raise Missing
    frame = pd.read_csv(path)
    frame = frame[~frame["model"].str.startswith("small-")]  # made here, too small to be seen
    rows = need(only(frame, scale=SCALE)).sort_values("parameters", ascending=False)
    figure, axes = style.axes(2, 11.0, 1.6 + 0.34 * len(rows))
    for axis, (phase, title) in zip(axes, PHASES.items(), strict=True):
        _panel(axis, rows, phase)
        axis.set_title(title, loc="left")
    axes[1].set_yticks(range(len(rows)), [])
    style.legend(figure, axes, 7)
    return figure


def _panel(axis: Axes, rows: pd.DataFrame, phase: str) -> None:
    left = np.zeros(len(rows))
    for part, (label, colour) in PARTS.items():
        if f"{phase}_{part}" not in rows:
            continue
        width = rows[f"{phase}_{part}"].to_numpy() / 2**30
        axis.barh(range(len(rows)), width, left=left, color=colour, label=label)
        left += width
    for place, total in enumerate(left):
        axis.text(total, place, f" {total:.3g}", va="center", fontsize=8)
    axis.axvline(LIMIT, color=style.INK, linestyle="--", linewidth=1.2, label=f"{LIMIT} GiB")
    axis.set_yticks(range(len(rows)), rows["model"])
    axis.grid(axis="y", visible=False)
    axis.set(xlim=(None, 1.1 * max(LIMIT, left.max())), xlabel="GiB of a process")
