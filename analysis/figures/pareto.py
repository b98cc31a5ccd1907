"""Perplexity against the share of distant pairs kept: recipe, paper's way and controls at equal
density.

Drawn once the recipe stage has written `results/recipe/<cell>/table.csv` in the columns of the
top-k stage.
"""

from __future__ import annotations

from matplotlib.figure import Figure

from analysis.figures import style
from analysis.results import TOPK_COLUMNS, Results

CAPTION = (
    "Perplexity relative to pretrained against the share of distant pairs kept "
    "(window and sinks aside). Bars: "
    "bootstrap interval over documents, paired with pretrained."
)


def draw(results: Results) -> Figure | None:
    """The figure, None without results of the recipe stage."""
    frame = results.cells("recipe", TOPK_COLUMNS)
    frame = frame[frame["mode"] == "hard"] if not frame.empty else frame
    if frame.empty:
        return None
    figure, (axis,) = style.row(1)
    for i, (variant, rows) in enumerate(frame.groupby("variant", sort=False)):
        line = rows.sort_values("distant_density")
        spread = [line["delta"] - line["delta_low"], line["delta_high"] - line["delta"]]
        axis.errorbar(
            100 * line["distant_density"],
            1 + line["delta"],
            [s.clip(lower=0) for s in spread],
            label=variant,
            color=style.CYCLE[i % len(style.CYCLE)],
            marker=style.MARKERS[i % len(style.MARKERS)],
            capsize=2.5,
        )
    axis.axhline(1, color=style.INK, linewidth=1.3, label="pretrained")
    axis.set_xlabel("distant pairs kept (%)")
    axis.set_ylabel("perplexity / pretrained perplexity")
    axis.legend(frameon=False)
    return figure
