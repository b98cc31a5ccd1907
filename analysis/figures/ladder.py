"""What masks cost against the size of the model, with the law and its forecasts."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator

from analysis import forecast, ladder
from analysis.figures import style
from analysis.forecast import Law
from analysis.results import Results
from analysis.rows import need, only

CAPTION = (
    "The same retrofit on models of one type at growing size, masks with a window of 8 tokens, "
    "test articles of 512. Left: change of the perplexity against the same model with full "
    "attention (logarithmic above 10%), 95% intervals over documents. Right: the share of the "
    "distant pairs from which on that change is 2% or less, read off between masks. Filled: "
    "models trained here, all on the same million tokens. Dashed: a straight line in the "
    "logarithm of the parameters, fitted on these alone; wide bars are where it expects one "
    "further model of 135M, 1B and 7B (95%, cut at -10), set apart sideways. Hollow: SmolLM2-135M, "
    "trained by others on two trillion tokens and read after the forecast was committed; crosses: "
    "the same model under a window of 128, plays and books."
)
# Colour, marker, and how far aside of a further model's size.
SHOWN = {ladder.WINDOW: (style.ORANGE, "v", 0.72), "k1.symmetric.sinkhorn": (style.RED, "s", 0.9),
         "k3.multi_probe.sinkhorn": (style.PURPLE, "^", 1.12),
         "k2.symmetric.sinkhorn": (style.BLUE, "o", 1.4)}  # fmt: skip
SIZES = np.logspace(5.7, 10.1, 60)  # parameters
TICKS = {10.0**n: f"{10 ** (n - 6):g}M" if n < 9 else f"{10 ** (n - 9):g}B" for n in range(6, 11)}
LOWEST = -10.0  # percent: further down lies no gap
CHANGES = (-10, -5, 0, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000)


def draw(results: Results) -> Figure:
    """Gaps, and density needed."""
    need(ladder.of(results, "ladder"))
    figure, (gaps, share) = style.axes(2, 9.8, 4.4)
    for budget, (colour, marker, aside) in SHOWN.items():
        masks(gaps, results, budget, {"color": colour, "marker": marker}, aside)
    gaps.axhline(0, color=style.INK, linewidth=1.2)
    top = 1.5 * gaps.get_ylim()[1]
    style.changes(gaps, LOWEST, top)
    gaps.set_yticks([tick for tick in CHANGES if tick <= top])
    gaps.set(ylim=(LOWEST, top), ylabel="change of perplexity\n(%, logarithmic beyond 10)")
    density(share, results)
    gaps.set_title("What a mask costs", loc="left")
    share.set_title("Pairs needed to cost little", loc="left")
    for axis in (gaps, share):
        axis.set_xscale("log")
        axis.set_xticks(list(TICKS), list(TICKS.values()))
        axis.xaxis.set_minor_locator(NullLocator())
        axis.set_xlabel("parameters")
    keys(gaps, results)
    style.legend(figure, [gaps, share], 3)
    return figure


def keys(axis: Axes, results: Results) -> None:
    """What a dashed line, a hollow mark and a cross stand for, where there are any."""
    there = set(ladder.table(results)["place"])
    for place, label, look in (
        ("ladder", "fit on our sizes, and its forecasts", {"linestyle": "--"}),
        ("next rung", "135M, the same masks", {"marker": "o", "markerfacecolor": "white"}),
        ("another window and text", "135M, a window of 128", {"marker": "x"}),
    ):
        if place in there:
            axis.plot([], [], color=style.GREY, label=label, **{"linestyle": "", **look})


def masks(axis: Axes, results: Results, budget: str, look: dict[str, str],
          aside: float) -> None:  # fmt: skip
    """One mask: the rungs with their law, the next rung, and the same mask elsewhere."""
    line(axis, forecast.gap(results, budget), look["color"], aside)
    rungs, beyond = (ladder.of(results, place, budget) for place in ("ladder", "next rung"))
    points(axis, rungs, "change", label=ladder.MASKS[budget], **look)
    points(axis, beyond, "change", aside, **look, markerfacecolor="white", zorder=4)
    other = ladder.of(results, "another window and text", budget)
    axis.plot(aside * other["parameters"], 100 * other["change"], linestyle="", marker="x",
              color=look["color"])  # fmt: skip


def density(axis: Axes, results: Results) -> None:
    """The density that a small gap takes."""
    frame, look = ladder.needed(results), {"color": style.GREEN, "marker": "D"}
    line(axis, forecast.density(results), style.GREEN)
    points(axis, only(frame, place="ladder"), "density", **look)
    points(axis, only(frame, place="next rung"), "density", **look, zorder=4,
           markerfacecolor="white")  # fmt: skip
    axis.set(ylim=(0, 102), ylabel=f"distant pairs needed for a gap of {ladder.SMALL:.0%} (%)")


def points(axis: Axes, rows: pd.DataFrame, column: str, aside: float = 1.0,
           **look: Any) -> None:  # fmt: skip
    """Values in percent with their intervals."""
    style.bars(axis, aside * rows["parameters"], rows, column, linestyle="", **look)


def line(axis: Axes, law: Law | None, colour: str, aside: float = 1.0) -> None:
    """A law, and where it expects further models."""
    if law is None:
        return
    axis.plot(SIZES, [law.at(float(size))[0] for size in SIZES], linestyle="--", linewidth=1.2,
              color=colour)  # fmt: skip
    for size in forecast.AHEAD.values():
        _, low, high = law.at(size)
        axis.plot([aside * size] * 2, [low, high], color=colour, linewidth=6, alpha=0.25,
                  solid_capstyle="butt")  # fmt: skip
