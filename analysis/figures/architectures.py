"""The paper's setup on every attention type: what it changes, ours beside the paper's."""

from __future__ import annotations

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from analysis import architectures
from analysis.architectures import TYPES
from analysis.figures import style
from analysis.paper import model_name, printed
from analysis.results import Results
from analysis.rows import need

CAPTION = (
    "Change of the perplexity against the same model with full attention. Filled: small models of "
    "ours (3 to 4 million parameters), trained on encyclopedia articles and then given routers on "
    "the same text, so that no gain is one of adaptation; 95% intervals over documents and seeds. "
    "Near tokens alone: what a mask can cost at all. Hollow: the paper's models of 124M to 70B "
    "parameters, routers trained on books, without intervals."
)
LOOKS = {"soft": (style.BLUE, "o", "ours, training gate", -0.2),
         2: (style.RED, "s", "ours, hard mask, 2 of 4 groups", 0.0)}  # fmt: skip


def draw(results: Results) -> Figure:
    """One panel."""
    frame = architectures.table(results)
    shown = need([name for name in TYPES if name in set(frame["attention"])])
    figure, (axis,) = style.axes(1, 8.6, 3.8)
    for key, (colour, marker, label, side) in LOOKS.items():
        own = frame[(frame["condition"] == key) | (frame["top_k"] == key)]
        places = [shown.index(name) + side for name in own["attention"]]
        style.bars(axis, places, own, label=label, color=colour, marker=marker, linestyle="")
    windows(axis, results, shown)
    papers(axis, shown)
    axis.axhline(0, color=style.INK, linewidth=1.2)
    axis.set_xticks(
        range(len(shown)), [f"{name}\n{TYPES[name]}".replace(" + ", "\n+ ", 1) for name in shown]
    )
    axis.set(ylabel="change of perplexity (%)", xlim=(-0.5, len(shown) - 0.5))
    style.legend(figure, [axis], 4)
    return figure


def windows(axis: Axes, results: Results, shown: list[str]) -> None:
    """What a window alone costs: what a mask can cost at all."""
    found = {name: architectures.worth(results, TYPES[name]) for name in shown}
    own = pd.DataFrame([row for row in found.values() if row is not None])
    if own.empty:
        return
    places = [shown.index(name) - 0.1 for name, row in found.items() if row is not None]
    near = results.cells[own["cell"].iloc[0]].method.get("window", 1)
    style.bars(axis, places, own, label=f"ours, {near} near tokens alone", marker="v",
               color=style.ORANGE, linestyle="")  # fmt: skip


def papers(axis: Axes, shown: list[str]) -> None:
    """The paper's models by attention type; two of its seven are the training gate's."""
    rows = [row for row in printed("table2") if row["attention"] in shown]
    for number, row in enumerate(rows):
        change = 100 * (row["ppl_focus"] / row["ppl_pretrained"] - 1)
        place = shown.index(row["attention"]) + 0.22
        axis.plot(place, change, marker="D", linestyle="", color=style.GREY, markersize=5.5,
                  markerfacecolor="white", label="" if number else "the paper's")  # fmt: skip
        axis.annotate(model_name(row["model"]), (place, change), xytext=(5, 2), fontsize=7,
                      textcoords="offset points", color=style.GREY)  # fmt: skip
