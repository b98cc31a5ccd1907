"""One look for all figures: colour-blind safe colours (Okabe and Ito), markers that differ in
shape too.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import matplotlib as mpl
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

BLUE, ORANGE, GREEN, PURPLE, SKY, RED = (
    "#0072B2",
    "#E69F00",
    "#009E73",
    "#CC79A7",
    "#56B4E9",
    "#D55E00",
)
GREY, INK = "#7A7A7A", "#222222"
BROWN, WINE, OLIVE = "#7f4f24", "#8A1C7C", "#6B7A1E"
CYCLE = (BLUE, RED, GREEN, PURPLE, ORANGE, SKY, BROWN, WINE, OLIVE)
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "p", "<", ">")
RC = {
    "font.size": 10,
    "axes.titlesize": 11,
    "axes.labelsize": 10,
    "legend.fontsize": 8.5,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#E5E5E5",
    "grid.linewidth": 0.7,
    "svg.fonttype": "path",
    "svg.hashsalt": "focus",
    "axes.axisbelow": True,
    "figure.facecolor": "white",
    "lines.linewidth": 1.6,
}


def nth(n: int) -> dict[str, str]:
    """Colour and marker of the nth line of many; the counts differ, so that both come again
    together only after their product."""
    return {"color": CYCLE[n % len(CYCLE)], "marker": MARKERS[n % len(MARKERS)]}


def grid(rows: int, columns: int, width: float, height: float) -> tuple[Figure, np.ndarray]:
    """A figure with rows x columns of axes that share y in a row; no global state (no pyplot)."""
    with mpl.rc_context(RC):
        figure = Figure(figsize=(width, height), layout="constrained")
        return figure, figure.subplots(rows, columns, squeeze=False, sharey="row")


def panels(count: int, width: float, height: float) -> tuple[Figure, list[Axes]]:
    """A figure with that many axes, two in a row, each ``width`` x ``height`` inches and with a
    scale of its own."""
    columns = min(count, 2)
    rows = -(-count // columns)
    with mpl.rc_context(RC):
        figure = Figure(figsize=(width * columns, height * rows), layout="constrained")
        axes = list(figure.subplots(rows, columns, squeeze=False).flat)
    for unused in axes[count:]:
        unused.remove()
    return figure, axes[:count]


def row(columns: int, width: float = 8.0, height: float = 4.8) -> tuple[Figure, list[Axes]]:
    """A figure with one row of axes, each with a scale of its own."""
    with mpl.rc_context(RC):
        figure = Figure(figsize=(width, height), layout="constrained")
        return figure, list(figure.subplots(1, columns, squeeze=False)[0])


def save(figure: Figure, paths: list[Path]) -> list[Path]:
    """Write the figure to each path; without dates, so that equal results give equal files."""
    with mpl.rc_context(RC):
        for path in paths:
            metadata = {"Date": None} if path.suffix == ".svg" else {"Software": None}
            figure.savefig(path, dpi=150, metadata=metadata)
    return paths


def legend(figure: Figure, axes: Iterable[Axes], columns: int) -> None:
    """One legend below all axes, each label once."""
    named: dict[str, object] = {}
    for axis in axes:
        for handle, label in zip(*axis.get_legend_handles_labels(), strict=True):
            named.setdefault(label, handle)
    figure.legend(
        named.values(), named.keys(), loc="outside lower center", ncols=columns, frameon=False
    )


def lengths(axis: Axes, values: list[int]) -> None:
    """A logarithmic axis of token counts with ticks 1K, 4K, ... at the values."""
    axis.set_xscale("log", base=2)
    step = max(1, round(len(values) / 8))
    shown = values[::-1][::step][::-1]
    axis.set_xticks(shown, [short(v) for v in shown])
    axis.minorticks_off()


def speedups(axis: Axes) -> None:
    """A logarithmic axis of ratios with ticks 0.5, 1, 2 ... where the data are."""
    axis.set_yscale("log", base=2)
    bottom, top = axis.get_ylim()
    ticks = [2.0**n for n in range(-4, 6) if bottom <= 2.0**n <= top]
    axis.set_yticks(ticks, [f"{tick:g}" for tick in ticks])


def speedup_bars(line: pd.DataFrame) -> list[pd.Series]:
    """What lies below and above a speed-up, from the spread of the method's own seconds."""
    full = line["speedup"] * line["median_s"]  # what full attention took beside it
    below = (line["speedup"] - full / line["high_s"]).clip(lower=0)
    above = (full / line["low_s"] - line["speedup"]).clip(lower=0)
    return [below, above]


def short(tokens: int) -> str:
    """256, 1K, 64K, 1M."""
    for unit, size in (("M", 2**20), ("K", 2**10)):
        if tokens >= size and tokens % size == 0:
            return f"{tokens // size}{unit}"
    return str(tokens)
