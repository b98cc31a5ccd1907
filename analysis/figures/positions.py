"""Where in a long text a mask costs."""

from __future__ import annotations

from matplotlib.figure import Figure

from analysis import lengths, positions
from analysis.figures import style
from analysis.figures.lengths import LOOKS
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
    for name, role in LOOKS.items():
        own = frame[frame["experiment"] == name].sort_values("position")
        if own.empty:
            continue
        look = style.look(role)
        cost.errorbar(own["position"], 100 * own["change"],
                      style.spread(own, "change", "low", "high", 100), label=lengths.LINES[name],
                      **look, **style.BAR)  # fmt: skip
        moved.plot(own["position"], own["moved"], **look, markersize=5.5)
    cost.axhline(0, color=style.INK, linewidth=1.2)
    cost.set_ylabel("change of perplexity (%)")
    moved.set_ylabel("keys in other groups (%)")
    moved.set_ylim(bottom=0)
    for axis in (cost, moved):
        axis.set_xlabel("first position of the stretch")
    style.legend(figure, [cost, moved], 2)
    style.title(figure, "SmolLM2-135M, four plays, one seed; against its full attention")
    return figure
