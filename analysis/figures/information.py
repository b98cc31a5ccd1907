"""What a token's group tells of it, layer by layer."""

from __future__ import annotations

from matplotlib.figure import Figure

from analysis import information
from analysis.figures import style
from analysis.figures.contents import by_layer, finish
from analysis.results import Results
from analysis.rows import only

CAPTION = (
    "What a token's group (K = 8, the paper's setup) tells of the token, of its place, and of its "
    "group under other routers: adjusted mutual information, where 0 is chance and 1 that each "
    "tells the other. Bands: 95% interval over test documents."
)


def draw(results: Results) -> Figure | None:
    """A line a label; None where no groups were read."""
    frame = only(information.table(results), cell=information.OWN)
    if frame.empty:
        return None
    figure, (axis,) = style.axes(1, 8.0, 4.6)
    there = [name for name in information.NAMES if name in set(frame["about"])]
    for number, about in enumerate(there):
        own, name = only(frame, about=about), information.NAMES[about]
        by_layer(axis, own, "information", name, number)
    axis.axhline(0, color=style.INK, linewidth=1.2)
    axis.set_ylabel("mutual information beyond chance")
    finish(figure, axis, frame, 3)
    return figure
