"""What masks cost against the size of the model, with the law and its forecasts, and on longer
texts than their routers were trained on."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator

from analysis import ladder, models
from analysis.cells import ROLES
from analysis.figures import answers, style
from analysis.paper import printed
from analysis.results import Results
from analysis.rows import Missing, need, only
from analysis.words import either

# Colour and marker, a panel each.
SHOWN = {ladder.WINDOW: (style.ORANGE, "v"), "k1.symmetric.sinkhorn": (style.RED, "s"),
         "k3.multi_probe.sinkhorn": (style.PURPLE, "^"),
         "k2.symmetric.sinkhorn": (style.BLUE, "o")}  # fmt: skip
SIZES = np.logspace(5.7, 10.1, 60)  # parameters
TICKS = {10.0**n: f"{10 ** (n - 6):g}M" if n < 9 else f"{10 ** (n - 9):g}B" for n in range(6, 11)}
LOWEST = -10.0  # percent: further down lies no gap
CHANGES = (-10, -5, 0, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000)
APART = 0.09  # of a stretch, or of a doubling of the length: between marks side by side
NAMES = {models.LINES["long_recipe"]: ROLES["ours"]}  # as other figures call it
LOOKS = {
    "long_paper": "paper",
    "long_paper_steps": "paper_steps",
    "long_paper_books": "paper on books",
    "long_recipe": "ours",
    "long_heavy_untrained": "heavy",
    "long_longer_allocated": "longer_allocated",
}


def by_size(results: Results) -> Figure:
    """A panel a mask with its gaps, and one for the density needed."""
    need(ladder.of(results, "ladder"))
    figure, every = style.axes(3, 12.0, 7.4, rows=2)
    *gaps, share, spare = every
    for axis, (budget, (colour, marker)) in zip(gaps, SHOWN.items(), strict=True):
        masks(axis, results, budget, {"color": colour, "marker": marker})
        axis.set_title(ladder.MASKS[budget], loc="left")
    alike(gaps)
    density(share, results)
    share.set_title("pairs needed to cost little", loc="left")
    for axis in (*gaps, share):
        axis.set_xscale("log")
        axis.set_xticks(list(TICKS), list(TICKS.values()))
        axis.xaxis.set_minor_locator(NullLocator())
        axis.set_xlabel("parameters")
    keys(spare, results)
    return figure


def alike(gaps: list[Axes]) -> None:
    """One vertical axis for all masks."""
    top = 1.5 * max(axis.get_ylim()[1] for axis in gaps)
    for axis in gaps:
        axis.axhline(0, color=style.INK, linewidth=1.2)
        style.changes(axis, LOWEST, top)
        axis.set_yticks([tick for tick in CHANGES if tick <= top])
        axis.set_ylim(LOWEST, top)
    for axis in gaps[::3]:
        axis.set_ylabel(f"change of perplexity\n(%{style.scale(axis)})")


def keys(axis: Axes, results: Results) -> None:
    """What a line, a bar and a mark stand for, where there are any, in place of a panel."""
    there = set(ladder.table(results)["place"])
    for place, label, look in (
        ("ladder", "small models, trained here", {"marker": "o"}),
        ("ladder", "fit on these alone", {"linestyle": "--"}),
        ("ladder", "its forecasts of 135M, 1B and 7B",
         {"linestyle": "-", "linewidth": 7, "alpha": 0.35}),
        ("next rung", "SmolLM2-135M, the same masks", {"marker": "o", "markerfacecolor": "white"}),
        ("another window and text", "SmolLM2-135M, a window of 128", {"marker": "x"}),
    ):  # fmt: skip
        if place in there:
            axis.plot([], [], color=style.GREY, label=label, **{"linestyle": "", **look})
    axis.set_axis_off()
    axis.legend(loc="center left", frameon=False, fontsize=10, labelspacing=1)


def masks(axis: Axes, results: Results, budget: str, look: dict[str, str]) -> None:
    """One mask: the rungs with their law, the next rung, and the same mask elsewhere."""
    line(axis, ladder.gap(results, budget), look["color"])
    points(axis, ladder.of(results, "ladder", budget), "change", **look)
    points(axis, ladder.of(results, "next rung", budget), "change", **look,
           markerfacecolor="white", zorder=4)  # fmt: skip
    other = ladder.of(results, "another window and text", budget)
    axis.plot(other["parameters"], 100 * other["change"], linestyle="", marker="x",
              color=look["color"])  # fmt: skip


def density(axis: Axes, results: Results) -> None:
    """The density that a small gap takes."""
    frame, look = ladder.needed(results), {"color": style.GREEN, "marker": "D"}
    line(axis, ladder.density(results), style.GREEN)
    points(axis, only(frame, place="ladder"), "density", **look)
    points(axis, only(frame, place="next rung"), "density", **look, zorder=4,
           markerfacecolor="white")  # fmt: skip
    axis.set(ylim=(0, 102), ylabel=f"distant pairs needed\nfor a gap of {ladder.SMALL:.0%} (%)")


def points(axis: Axes, rows: pd.DataFrame, column: str, **look: Any) -> None:
    """Values in percent with their intervals."""
    style.bars(axis, rows["parameters"], rows, column, linestyle="", **look)


def line(axis: Axes, law: ladder.Law | None, colour: str) -> None:
    """A law, and where it expects further models."""
    if law is None:
        return
    axis.plot(SIZES, [law.at(float(size))[0] for size in SIZES], linestyle="--", linewidth=1.2,
              color=colour)  # fmt: skip
    for size in ladder.AHEAD.values():
        _, low, high = law.at(size)
        axis.plot([size] * 2, [low, high], color=colour, linewidth=6, alpha=0.25,
                  solid_capstyle="butt")  # fmt: skip


def by_length(results: Results) -> Figure:
    """Cost against length; Missing where nothing was read at several lengths."""
    frame = models.lengths(results)
    if frame["context"].nunique() < 2:
        raise Missing
    figure, (cost,) = style.axes(1, 9.2, 5.8)
    labels = {method: legend(own) for method, own in frame.groupby("method")}
    lines(cost, frame.assign(label=frame["method"].map(labels),
                             place=np.log2(frame["context"].astype(float))))  # fmt: skip
    rows = printed("long_context")
    places = np.log2([row["context"] for row in rows])
    cost.plot(places, [100 * (row["ppl_topk2"] / row["ppl_full"] - 1) for row in rows],
              linestyle="--", label="the paper's Mistral 7B, books, 2 of 4 groups",
              **style.PAPER)  # fmt: skip
    cost.set_xticks(places, [style.short(row["context"]) for row in rows])
    return finish(figure, [cost], "tokens of the text (marks are set apart sideways)", frame)


def legend(rows: pd.DataFrame) -> str:
    """An experiment, the length that its routers learnt at, and the distant pairs that it keeps."""
    first, kept = rows.iloc[0], answers.shares(rows["distant_density"])
    trained = first["trained_at"]
    at = f", trained at {style.short(int(trained))}" if pd.notna(trained) else ""
    return f"{NAMES.get(first['method'], first['method'])}{at}\n(keeps {kept} of the distant pairs)"


def by_position(results: Results) -> Figure:
    """Cost and drift against the position."""
    frame = need(models.positions(results))
    figure, (cost, moved) = style.axes(2, 11.0, 4.6)
    starts = sorted(frame["position"].unique())
    frame = frame.assign(label=frame["method"].replace(NAMES),
                         place=frame["position"].map(starts.index))  # fmt: skip
    lines(cost, frame)
    lines(moved, frame, "moved")
    moved.set(ylabel="group shares that differ from those of\nthe first stretch (%)",
              ylim=(0, None))  # fmt: skip
    for axis in (cost, moved):
        axis.set_xticks(range(len(starts)), [style.short(int(start)) for start in starts])
    return finish(figure, [cost, moved], "tokens before the stretch of 1,024", frame)


def lines(axis: Axes, rows: pd.DataFrame, column: str = "change") -> None:
    """A line an experiment: what it costs, or another column of it; side by side, or one would
    hide the other."""
    for number, (name, role) in enumerate(LOOKS.items()):
        own, look = only(rows, method=models.LINES[name]).sort_values("place"), style.look(role)
        places = own["place"] + APART * (number - (len(LOOKS) - 1) / 2)
        if own.empty:
            continue
        if column == "change":
            style.bars(axis, places, own, label=own["label"].iloc[0], **look)
        else:
            axis.plot(places, own[column], **look, markersize=5.5)


def finish(figure: Figure, every: list[Axes], x: str, rows: pd.DataFrame) -> Figure:
    """Words on the axes, a legend, and what was read."""
    every[0].axhline(0, color=style.INK, linewidth=1.2)
    every[0].set_ylabel("change of perplexity (%)")
    for axis in every:
        axis.set_xlabel(x)
    read = f"{either(rows['documents'], 'play')}, {either(rows['seeds'], 'seed')} a line"
    against = "against the same model with full attention"
    return style.finished(figure, 2, f"ours: SmolLM2-135M, {read}; {against}")
