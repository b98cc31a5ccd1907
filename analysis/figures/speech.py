"""Parts of speech that each group holds, in the first, the middle and the last layer."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from analysis import contents
from analysis.contents import CATEGORIES
from analysis.figures import style
from analysis.results import Results
from analysis.rows import need, only

CAPTION = (
    "Share of each group's test tokens that have a part of speech (a row adds to 100%; textblob's "
    "tags, `other` is mostly line breaks), by the paper's setup with K = 8. Rows are in the order "
    "of what they hold most. Bottom: all tokens, which a group at random would be like."
)


def draw(results: Results) -> Figure:
    """A panel a layer."""
    own = need(only(contents.right(results), by="groups"))
    layers = sorted(own["layer"].unique())
    shown = list(dict.fromkeys([layers[0], layers[len(layers) // 2], layers[-1]]))
    figure, every = style.axes(len(shown), 1.6 + 3.1 * len(shown), 4.6)
    for axis, layer in zip(every, shown, strict=True):
        panel(axis, shares(only(own, layer=layer)), f"layer {layer}")
    every[0].set_ylabel("group")
    return figure


def shares(own: pd.DataFrame) -> pd.DataFrame:
    """Percent of a group's tokens by part of speech, a row a group; the last, all tokens."""
    counts = own.groupby("group")[list(CATEGORIES)].sum()
    found = 100 * counts.div(counts.sum(axis=1), axis=0)
    most = found.to_numpy()
    order = np.lexsort((-most.max(axis=1), most.argmax(axis=1)))
    whole = 100 * counts.sum() / counts.to_numpy().sum()
    found.index = found.index.astype(str)
    return pd.concat([found.iloc[order], whole.to_frame("all").T])


def panel(axis: Axes, table: pd.DataFrame, title: str) -> None:
    """One layer's groups, with the number in each cell."""
    values = table.to_numpy()
    axis.imshow(values, cmap="Blues", vmin=0, vmax=100, aspect="auto")
    for (row, column), value in np.ndenumerate(values):
        axis.text(column, row, f"{value:.0f}", ha="center", va="center", fontsize=8,
                  color="white" if value > 55 else style.INK)  # fmt: skip
    axis.axhline(len(values) - 1.5, color=style.INK, linewidth=1.2)
    axis.set_xticks(range(len(CATEGORIES)), CATEGORIES, rotation=40, ha="right", fontsize=8)
    axis.set_yticks(range(len(values)), table.index)
    axis.grid(visible=False)
    axis.set_title(title, loc="left")
