"""Quality against the time of attention: the paper's Figure 1, for what has a fast path here."""

from __future__ import annotations

from matplotlib.figure import Figure

from analysis import timed
from analysis.cells import ROLES
from analysis.comparisons import headline
from analysis.figures import style
from analysis.figures.quality import counted_against
from analysis.results import Results
from analysis.rows import need, only

CAPTION = (
    "Change of perplexity at 2,048 tokens, against the time of attention at 16,384 tokens as a "
    "share of full attention's (two CPU cores, all masks in turn in one run). Groups are random "
    "and of one size, which trained ones are not quite; calibrated: heads of one layer that "
    "differ about as ours do over all layers. Routing and the search for n-grams are not in it; "
    "the figure of the whole model has them. Bars: 95% intervals of the quality, the range over "
    "rounds of the time. Methods without a fast path here (SparQ, Quest and others) are left out."
)
ORDER = ("ours", "heavy", "allocated", "longer_allocated", "window", timed.PAPER)


def draw(results: Results) -> Figure:
    """A mark a mask."""
    frame, known = need(timed.table(results)), headline(results)
    figure, (axis,) = style.axes(1, 8.0, 5.0)
    for number, role in enumerate(each for each in ORDER if each in set(frame["role"])):
        own = only(frame, role=role).sort_values("time")
        look = style.look(role, number) | ({"linestyle": ""} if role == timed.PAPER else {})
        axis.errorbar(
            100 * own["time"], 100 * own["change"], style.spread(own), style.spread(own, "time"),
            label=ROLES[role], **look, **style.BAR,
        )  # fmt: skip
    axis.axhline(0, color=style.INK, linewidth=1.4, label=counted_against(results, known))
    axis.plot([100], [0], color=style.INK, marker="D", markersize=7)
    style.changes(axis, 100 * frame["low"].min(), 100 * frame["change"].max())
    length = int(frame["length"].iloc[0])
    axis.set(
        xlim=(0, 104),
        xlabel=f"time of attention at {length:,} tokens, groups at random (% of full)",
        ylabel=f"change of perplexity at 2,048 tokens\n(%{style.scale(axis)})",
    )
    style.legend(figure, [axis], 2)
    style.title(figure, f"not at the same length: 2,048 and {length:,} tokens")
    return figure
