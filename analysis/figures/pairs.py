"""Which keys a head's queries see, and whether groups keep the pairs that copying needs."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from analysis import pairs
from analysis.figures import style
from analysis.results import Results
from analysis.rows import need, only
from experiments.readings.information import LETTERS

SEES = {
    "window and sinks": "#D9D9D9", "keys of the query's groups": style.BLUE,
    "keys found word for word": style.RED,
}  # fmt: skip
NEAR, GROUP, WORD = 1, 2, 3
MOST = 4  # layers that are drawn
LINES = {
    "weight_shared": "pairs that copying needs, by full attention's weight",
    "shared": "pairs that copying needs, each alike", "chance": "all distant pairs",
}  # fmt: skip


def picture(results: Results) -> Figure:
    """A panel a layer, of the first document that was read."""
    frame = results.readings["picture"]
    frame = need(frame[frame["ngram"].astype(float) > 0])
    own = only(frame, **frame.iloc[0][["cell", "seed", "budget", "document"]]).head(MOST)
    columns = min(2, len(own))
    rows = -(-len(own) // columns)
    figure, axes = style.axes(columns, 5.2 * columns, 1.2 + 4.9 * rows, rows=rows)
    for axis, row in zip(axes, own.to_dict("records"), strict=False):
        seen = sight(row)
        axis.imshow(seen, cmap=ListedColormap(["white", *SEES.values()]), vmin=0, vmax=WORD,
                    interpolation="nearest")  # fmt: skip
        queries, keys = np.nonzero(seen == WORD)
        axis.scatter(keys, queries, s=2.5, color=SEES["keys found word for word"], linewidths=0,
                     rasterized=True)  # fmt: skip
        head = f"layer {row['layer']}, head {row['head']}"
        axis.set_title(f"{head} (groups keep {_kept(row):.0%})", loc="left")
        axis.grid(visible=False)
        axis.set(xlabel="position of the key", ylabel="position of the query")
    for axis in axes[len(own) :]:
        axis.set_axis_off()
    handles = [Patch(color=colour, label=name + " (enlarged)" * ("word for word" in name))
               for name, colour in SEES.items()]  # fmt: skip
    figure.legend(handles=handles, loc="outside lower center", ncols=3, frameon=False)
    first = own.iloc[0]
    read = f"The first {first['tokens']} tokens of {first['document']} ({first['texts']})"
    style.title(figure, f"{read}, {groups(first)}")
    return figure


def sight(row: dict[str, object]) -> np.ndarray:
    """(T, T) by query and key: 0 nothing, else why the query sees the key."""
    tokens = int(row["tokens"])  # type: ignore[call-overload]
    queries, keys = (_members(str(row[name]), tokens) for name in ("queries", "keys"))
    position = np.arange(tokens)
    causal = position[:, None] >= position
    seen = np.where((queries @ keys.T > 0) & causal, GROUP, 0)
    for query, places in enumerate(str(row["further"]).split(";")):
        seen[query, [int(each) for each in places.split()]] = WORD
    seen[_near(row, position) & causal] = NEAR
    return seen


def _near(row: dict[str, object], position: np.ndarray) -> np.ndarray:
    window, sinks = (int(row[name]) for name in ("window", "sinks"))  # type: ignore[call-overload]
    return (position[:, None] - position < window) | (position < sinks)


def _members(letters: str, tokens: int) -> np.ndarray:
    """Groups of each token, (T, letters), from as many letters a token."""
    codes = np.array([ord(each) for each in letters]).reshape(tokens, -1)
    members = np.zeros((tokens, ord(LETTERS[-1]) + 1), dtype=np.float32)
    np.put_along_axis(members, codes, 1, axis=1)
    return members


def _kept(row: dict[str, object]) -> float:
    seen = sight(row)
    position = np.arange(len(seen))
    distant = (position[:, None] >= position) & ~_near(row, position)
    return float((seen[distant] == GROUP).mean())


def induction(results: Results) -> Figure:
    """Shares by layer above, weight by layer below."""
    frame = need(only(pairs.induction(results), role="ours", ngram=0))
    own = frame[frame["layer"].astype(str) != "all"]
    own = only(own, **frame.iloc[0][["cell", "budget"]])
    own.index = own["layer"].astype(int)
    figure, (axis, below) = style.axes(1, 8.0, 5.6, heights=(3, 1))
    for number, (value, name) in enumerate(LINES.items()):
        look = style.nth(number)
        axis.plot(own.index, own[value], label=name, markersize=4.5, **look)
        if f"{value}_low" in own:
            style.band(axis, own[f"{value}_low"], own[f"{value}_high"], look["color"])
    axis.set(ylim=(0, 100), ylabel="pairs in a shared group (%)")
    below.bar(own.index, own["weight"], color=style.GREY)
    below.set(xlabel="layer", ylabel="weight of\na pair (%)")
    below.sharex(axis)
    first = own.iloc[0]
    read = f"{first['documents']} documents ({first['texts']})"
    return style.finished(figure, 2, f"{read}, {groups(first)}")


def groups(row: pd.Series) -> str:
    """How many groups a query has, in words."""
    return f"{row['top_k']:.0f} of {row['K']:.0f} groups a query"
