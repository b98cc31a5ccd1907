"""What groups hold, layer by layer."""

from __future__ import annotations

from matplotlib.figure import Figure

from analysis import contents
from analysis.figures import style
from analysis.results import Results

CAPTION = (
    "Test tokens that have the part of speech of their group: each group is given the one that "
    "most of its validation tokens have (seven categories, tagged by textblob). Learnt groups of "
    "the paper's setup, K = 8, beside other ways to put the same tokens into 8 groups. Bands: 95% "
    "interval over documents. K-means need not fill its groups evenly; the learnt groups must."
)


def draw(results: Results) -> Figure | None:
    """A line a way to group; None where no contents were read."""
    frame = contents.table(results)
    if frame.empty:
        return None
    figure, (axis,) = style.axes(1, 8.0, 4.6)
    for number, (by, name) in enumerate(contents.WAYS.items()):
        own = frame[(frame["by"] == by) & (frame["layer"] != "all")]
        layers, look = own["layer"].astype(int), style.nth(number)
        axis.plot(layers, own["purity"], label=name, markersize=4.5, **look)
        axis.fill_between(layers, own["low"], own["high"], color=look["color"], alpha=0.15,
                          linewidth=0)  # fmt: skip
    axis.set_ylim(0, 100)
    axis.set_xlabel("layer")
    axis.set_ylabel("tokens of their group's part of speech (%)")
    style.legend(figure, [axis], 2)
    count = int(frame["documents"].max())
    style.title(figure, f"Routers of the paper's setup on {count} plays")
    return figure
