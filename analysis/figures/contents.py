"""What groups hold, and what a token's group tells of it, layer by layer."""

from __future__ import annotations

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from analysis import contents, information
from analysis.figures import style
from analysis.results import Results
from analysis.rows import need, only

CAPTION = (
    "Test tokens that have the part of speech of their group: each group is given the one that "
    "most of its validation tokens have (seven categories, tagged by textblob). Learnt groups of "
    "the paper's setup, K = 8, beside other ways to put the same tokens into 8 groups. Bands: 95% "
    "interval over documents. K-means need not fill its groups evenly; the learnt groups must."
)
INFORMATION = (
    "What a token's group (K = 8, the paper's setup) tells of the token, of its position, and of "
    "its group under other routers: adjusted mutual information, where 0 is chance and 1 that each "
    "tells the other. Bands: 95% interval over test documents."
)


def draw(results: Results) -> Figure:
    """A line a way to group."""
    frame = need(contents.table(results))
    figure, (axis,) = style.axes(1, 8.0, 4.6)
    for number, (by, name) in enumerate(contents.WAYS.items()):
        by_layer(axis, only(frame, by=by), "purity", name, number)
    axis.set(ylim=(0, 100), ylabel="tokens of their group's part of speech (%)")
    finish(figure, axis, frame, 2)
    return figure


def told(results: Results) -> Figure:
    """A line a label."""
    frame = need(only(information.table(results), cell=information.OWN))
    figure, (axis,) = style.axes(1, 8.0, 4.6)
    there = [name for name in information.NAMES if name in set(frame["about"])]
    for number, about in enumerate(there):
        own, name = only(frame, about=about), information.NAMES[about]
        by_layer(axis, own, "information", name, number)
    axis.axhline(0, color=style.INK, linewidth=1.2)
    axis.set_ylabel("mutual information\n(0: chance, 1: identical)")
    finish(figure, axis, frame, 3)
    return figure


def by_layer(axis: Axes, rows: pd.DataFrame, value: str, name: str, number: int) -> None:
    """A line over the layers with the band of its interval."""
    own = rows[rows["layer"] != "all"].set_index("layer")
    own.index, look = own.index.astype(int), style.nth(number)
    axis.plot(own.index, own[value], label=name, markersize=4.5, **look)
    style.band(axis, own["low"], own["high"], look["color"])


def finish(figure: Figure, axis: Axes, frame: pd.DataFrame, columns: int) -> None:
    """Layers below, a legend, and what was read."""
    axis.set_xlabel("layer")
    style.legend(figure, [axis], columns)
    style.title(figure, f"Routers of the paper's setup on {int(frame['documents'].max())} plays")
