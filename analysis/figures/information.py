"""What a token's group tells of it, layer by layer."""

from __future__ import annotations

from matplotlib.figure import Figure

from analysis import information
from analysis.figures import style
from analysis.results import Results

CAPTION = (
    "What a token's group (K = 8, the paper's setup) tells of the token, of its place, and of its "
    "group under other routers: adjusted mutual information, where 0 is chance and 1 that each "
    "tells the other. Bands: 95% interval over test documents."
)


def draw(results: Results) -> Figure | None:
    """A line a label; None where no groups were read."""
    frame = information.table(results)
    frame = frame[frame["cell"] == information.OWN]
    if frame.empty:
        return None
    figure, (axis,) = style.axes(1, 8.0, 4.6)
    there = [name for name in information.NAMES if name in set(frame["about"])]
    for number, about in enumerate(there):
        own = frame[(frame["about"] == about) & (frame["layer"] != "all")]
        layers, look = own["layer"].astype(int), style.nth(number)
        axis.plot(layers, own["information"], label=information.NAMES[about], markersize=4.5,
                  **look)  # fmt: skip
        axis.fill_between(layers, own["low"], own["high"], color=look["color"], alpha=0.15,
                          linewidth=0)  # fmt: skip
    axis.axhline(0, color=style.INK, linewidth=1.2)
    axis.set_xlabel("layer")
    axis.set_ylabel("mutual information beyond chance")
    style.legend(figure, [axis], 3)
    style.title(figure, f"Routers of the paper's setup on {int(frame['documents'].max())} plays")
    return figure
