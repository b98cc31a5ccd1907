"""Where in a long text a mask costs."""

from __future__ import annotations

from matplotlib.figure import Figure

from analysis import positions
from analysis.figures import style
from analysis.figures.lengths import finish, lines
from analysis.results import Results

CAPTION = (
    "Plays of 8,192 tokens, by position. Left: what a mask costs there against full attention, "
    "with 95% intervals over documents. Right: how far the groups of the keys there are from those "
    "of the first thousand tokens (total variation, mean over routers)."
)


def draw(results: Results) -> Figure | None:
    """Cost and drift against the position; None where nothing was read so."""
    frame = positions.table(results)
    if frame.empty:
        return None
    figure, (cost, moved) = style.axes(2, 9.2, 3.6)
    lines(cost, moved, frame.assign(label=frame["method"]), "position", "moved")
    moved.set(ylabel="keys in other groups (%)", ylim=(0, None))
    return finish(figure, cost, moved, "first position of the stretch")
