"""One look for all figures: colour-blind safe colours (Okabe and Ito), markers that differ in
shape too, plain words, units and error bars."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullLocator

from analysis.rows import ends_of

BLUE, ORANGE, GREEN, PURPLE = "#0072B2", "#E69F00", "#009E73", "#CC79A7"
SKY, RED, GREY, INK = "#56B4E9", "#D55E00", "#7A7A7A", "#222222"
CYCLE = (BLUE, RED, GREEN, PURPLE, ORANGE, SKY, "#7f4f24")
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
MOST = len(CYCLE)  # lines that an eye keeps apart
OTHERS = ("#999933", "#AA4499", "#44AA99")  # beside the looks below
# What always looks the same, by role; what has no look here takes the next one that is free.
LOOKS = {
    "ours": (BLUE, "o", "-"), "allocated": (GREEN, "^", "-"), "paper": (RED, "s", "-"),
    "ours_last": (BLUE, "X", "--"), "allocated_last": (GREEN, "v", "--"),
    "paper_adapted": (RED, "P", "-"), "paper_steps": (CYCLE[-1], "D", "-"),
    "longer_allocated": (PURPLE, "D", "-"), "heavy": (SKY, "P", "-"),
    "longer_heavy": (SKY, "X", "--"), "window": (ORANGE, "v", "--"), "random": (GREY, "x", ":"),
    "sparq": ("#332288", "X", "--"), "quest": (CYCLE[-1], "P", "--"),
    "sparq_groups": (SKY, "s", "-"), "heavy_window": (ORANGE, "^", ":"),
    "pretrained": (INK, "D", "--"), "adapted": (INK, "D", "-"),
}  # fmt: skip
RC = {
    "font.size": 10, "axes.titlesize": 11, "axes.labelsize": 10, "legend.fontsize": 8.5,
    "axes.spines.top": False, "axes.spines.right": False, "axes.grid": True,
    "grid.color": "#E5E5E5", "grid.linewidth": 0.7, "svg.fonttype": "path",
    "svg.hashsalt": "focus", "axes.axisbelow": True, "figure.facecolor": "white",
    "lines.linewidth": 1.6,
}  # fmt: skip
FINE = (0.5, 0.75, 1.0, 1.25, 1.5, 2.0, 2.5, 3.0, 4.0, 5.0)  # ticks of ratios that differ little
PAPER: dict[str, Any] = {"marker": "D", "color": GREY, "markerfacecolor": "white",
                         "markersize": 5.5}  # fmt: skip
BAR: dict[str, Any] = {"capsize": 2.5, "elinewidth": 1.1, "markersize": 5.5}


def look(role: str, number: int = 0) -> dict[str, str]:
    """Colour, marker and line of a role; of an unknown one, by its number."""
    other = (OTHERS[number % len(OTHERS)], MARKERS[::-1][number % MOST], "-")
    return dict(zip(("color", "marker", "linestyle"), LOOKS.get(role, other), strict=True))


def nth(n: int) -> dict[str, str]:
    """Colour and marker of the nth line of several alike."""
    return {"color": CYCLE[n % MOST], "marker": MARKERS[n % MOST]}


def axes(columns: int, width: float, height: float, rows: int = 1, share: bool = False,
         heights: Sequence[float] = ()) -> tuple[Figure, list[Axes]]:  # fmt: skip
    """A figure with a grid of axes, row by row, of these heights or all alike (no pyplot)."""
    with mpl.rc_context(RC):
        figure = Figure(figsize=(width, height), layout="constrained")
        grid = figure.subplots(len(heights) or rows, columns, squeeze=False,
                               sharey="row" if share else False,
                               height_ratios=heights or None)  # fmt: skip
    return figure, list(grid.flat)


def save(figure: Figure, paths: list[Path]) -> list[Path]:
    """Write the figure to each path; without dates, so that equal results give equal files."""
    with mpl.rc_context(RC):
        for path in paths:
            metadata = {"Date": None} if path.suffix == ".svg" else {"Software": None}
            figure.savefig(path, dpi=150, metadata=metadata)
    return paths


def shades(count: int) -> list[str]:
    """Colours of something that grows, from light to dark."""
    return [str(mpl.colors.to_hex(mpl.colormaps["viridis"](0.8 - 0.75 * n / max(1, count - 1))))
            for n in range(count)]  # fmt: skip


def title(figure: Figure, text: str) -> None:
    """What is shown, and what was read, above all axes."""
    figure.suptitle(text, x=0.01, ha="left", fontsize=11.5)


def finished(figure: Figure, columns: int, read: str = "") -> Figure:
    """The figure with one legend below all its axes, each label once; and with what was read."""
    named: dict[str, object] = {}
    for axis in figure.axes:
        for handle, label in zip(*axis.get_legend_handles_labels(), strict=True):
            named.setdefault(label, handle)
    figure.legend(
        named.values(), named.keys(), loc="outside lower center", ncols=columns, frameon=False
    )
    if read:
        title(figure, read)
    return figure


def spread(rows: pd.DataFrame, value: str = "change", scale: float = 100) -> Any:
    """Below and above a value, in percent where it is a share, for matplotlib's error bars."""
    low, high = ends_of(rows, value)
    below, above = rows[value] - rows[low], rows[high] - rows[value]
    return [scale * each.astype(float).fillna(0).clip(lower=0) for each in (below, above)]


def bars(axis: Axes, x: Iterable[float], rows: pd.DataFrame, value: str = "change",
         scale: float = 100, **look: Any) -> None:  # fmt: skip
    """Values with their intervals above x, in percent where they are shares."""
    axis.errorbar(x, scale * rows[value].astype(float), spread(rows, value, scale), **BAR, **look)


def band(axis: Axes, low: pd.Series, high: pd.Series, colour: str) -> None:
    """What lies between two lines, each by its index."""
    axis.fill_between(low.index, low, high, color=colour, alpha=0.15, linewidth=0)


def lengths(axis: Axes, values: Iterable[float]) -> None:
    """A logarithmic axis of token counts with ticks 1K, 4K, ... at the values."""
    every = sorted({int(v) for v in values})
    axis.set_xscale("log", base=2)
    shown = every[-1:]
    for value in every[-2::-1]:  # labels closer than this would touch
        if math.log2(shown[0] / value) >= math.log2(every[-1] / every[0]) / 8:
            shown = [value, *shown]
    axis.set_xticks(shown, [short(v) for v in shown])
    axis.minorticks_off()


def speedups(axis: Axes) -> None:
    """A logarithmic axis of ratios with ticks 0.5, 1, 2 ... where the data are, or finer ones."""
    axis.set_yscale("log", base=2)
    bottom, top = axis.get_ylim()
    every = FINE if top < 6 * bottom else [2.0**n for n in range(-4, 6)]
    ticks = [tick for tick in every if bottom <= tick <= top]
    axis.set_yticks(ticks, [f"{tick:g}" for tick in ticks])


def changes(axis: Axes, low: float, high: float) -> None:
    """A vertical axis of percent, logarithmic beyond 10 where some changes are far off."""
    if high > 30:
        axis.set_yscale("symlog", linthresh=10, linscale=1.5)
        every = (-10, -5, 0, 5, 10, 20, 50, 100, 200, 500)
        ticks = [tick for tick in every if low - 3 <= tick <= 1.3 * high]
        axis.set_yticks(ticks)
        axis.set_ylim(bottom=min(-2.0, low - 2))
        axis.yaxis.set_minor_locator(NullLocator())
    axis.yaxis.set_major_formatter(FuncFormatter(lambda y, _: f"{y:+g}" if y else "0"))


def scale(axis: Axes) -> str:
    """Words on a vertical axis of :func:`changes` that is logarithmic far from zero."""
    return ", logarithmic beyond 10" if axis.get_yscale() == "symlog" else ""


def short(tokens: int) -> str:
    """256, 1K, 64K, 1M."""
    for unit, size in (("M", 2**20), ("K", 2**10)):
        if tokens >= size and tokens % size == 0:
            return f"{tokens // size}{unit}"
    return str(tokens)
