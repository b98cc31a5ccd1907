"""What masks cost against the size of the model, with the law and its forecasts."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator

from analysis import forecast, ladder
from analysis.figures import style
from analysis.forecast import Law
from analysis.results import Results

CAPTION = (
    "The same retrofit on models of one type at growing size, masks with a window of 8 tokens, "
    "test articles of 512. Left: change of the perplexity against the same model with full "
    "attention, 95% intervals over documents. Right: the share of the distant pairs from which on "
    "that change is 2% or less, read off between masks. Filled: models trained here, all on the "
    "same million tokens. Dashed: a straight line in the logarithm of the parameters, fitted on "
    "these alone; the band is where it expects one further model (95%). Hollow: SmolLM2-135M, "
    "trained by others on two trillion tokens and read after the forecast was committed; crosses: "
    "the same model under a window of 128 on plays and books."
)
SHOWN = {ladder.WINDOW: (style.ORANGE, "v"), "k1.symmetric.sinkhorn": (style.RED, "s"),
         "k2.symmetric.sinkhorn": (style.BLUE, "o")}  # fmt: skip
SIZES = np.logspace(5.7, 10, 60)  # parameters
TICKS = {10.0**n: f"{10 ** (n - 6):g}M" if n < 9 else f"{10 ** (n - 9):g}B" for n in range(6, 11)}


def draw(results: Results) -> Figure | None:
    """Gaps, and density needed; None where no rung was read."""
    if ladder.of(results, "ladder").empty:
        return None
    figure, (gaps, share) = style.axes(2, 9.4, 4.2)
    for budget, (colour, marker) in SHOWN.items():
        masks(gaps, results, budget, colour, marker)
    gaps.axhline(0, color=style.INK, linewidth=1.2)
    low, high = gaps.get_ylim()
    style.changes(gaps, max(low, -10), high)
    gaps.set_ylabel("change of perplexity (%)")
    density(share, results)
    for axis in (gaps, share):
        axis.set_xscale("log")
        axis.set_xticks(list(TICKS), list(TICKS.values()))
        axis.xaxis.set_minor_locator(NullLocator())
        axis.set_xlabel("parameters")
    keys(gaps, results)
    style.legend(figure, [gaps, share], 4)
    return figure


def keys(axis: Axes, results: Results) -> None:
    """What a dashed line, a hollow mark and a cross stand for, where there are any."""
    there = set(ladder.table(results)["place"])
    for place, label, look in (
        ("ladder", "law of the rungs, 95% for a further model", {"linestyle": "--"}),
        ("next rung", "135M, the same masks", {"marker": "o", "markerfacecolor": "white"}),
        ("another window and text", "135M, a window of 128", {"marker": "x"}),
    ):
        if place in there:
            axis.plot([], [], color=style.GREY, label=label, **{"linestyle": "", **look})


def masks(axis: Axes, results: Results, budget: str, colour: str, marker: str) -> None:
    """One mask: the rungs with their law, the next rung, and the same mask elsewhere."""
    line(axis, forecast.gap(results, budget), colour)
    look = {"marker": marker, "color": colour}
    for place, label in (("ladder", ladder.MASKS[budget]), ("next rung", "")):
        points(axis, ladder.of(results, place, budget), "change", label, **look)
    other = ladder.of(results, "another window and text", budget)
    axis.plot(other["parameters"], 100 * other["change"], linestyle="", marker="x", color=colour)


def density(axis: Axes, results: Results) -> None:
    """The density that a small gap takes."""
    frame = ladder.needed(results)
    line(axis, forecast.density(results), style.GREEN)
    for place, label in (("ladder", f"density for {ladder.SMALL:.0%}"), ("next rung", "")):
        points(axis, frame[frame["place"] == place], "density", label, color=style.GREEN,
               marker="D")  # fmt: skip
    axis.set_ylim(0, 100)
    axis.set_ylabel("distant pairs needed (%)")


def points(axis: Axes, rows: pd.DataFrame, column: str, label: str, **look: str) -> None:
    """Values in percent with their intervals; hollow, without a label, those of the next rung."""
    face = look["color"] if label else "white"
    axis.errorbar(rows["parameters"], 100 * rows[column].astype(float), label=label, linestyle="",
                  markerfacecolor=face, yerr=style.spread(rows, column, "low", "high", 100),
                  **look, **style.BAR)  # fmt: skip


def line(axis: Axes, law: Law | None, colour: str) -> None:
    """A law, and where it expects one further model."""
    if law is None:
        return
    value, low, high = zip(*(law.at(float(size)) for size in SIZES), strict=True)
    axis.plot(SIZES, value, linestyle="--", linewidth=1.2, color=colour)
    axis.fill_between(SIZES, low, high, color=colour, alpha=0.12, linewidth=0)
