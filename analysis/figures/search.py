"""What one change of the recipe does, beside the trial that it changes."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from analysis.figures import style
from analysis.paired import above_pretrained
from analysis.results import Results

BASE = "search"
LINEAR = 4.0  # percent up to which the axis is linear
ROOM = 12  # times the longest bar, for the figures beside the bars
CAPTION = (
    "Trials that change one thing of the trial search each, trained as long, all ours: perplexity "
    "under a hard mask relative to that trial's, on validation books (bar: over all of them; dots: "
    "each book by itself, too few for an interval), one seed. In brackets the share of distant "
    "pairs kept. The axis is linear up to 4%, logarithmic beyond. All causal."
)
LOOK = {"symmetric.k1": "one group", "multi_probe.k2": "two groups a query, one a key",
        "multi_probe.k4": "four groups a query, one a key"}  # fmt: skip


def draw(results: Results) -> Figure | None:
    """A panel a mask; None without the trial `search` and another beside it."""
    frame = compared(results)
    if frame.empty:
        return None
    readings = [name for name in LOOK if name in set(frame["reading"])]
    trials = list(dict.fromkeys(frame["trial"]))[::-1]
    figure, axes = style.row(len(readings), 2.2 + 3.4 * len(readings), 1.9 + 0.34 * len(trials))
    for axis, reading in zip(axes, readings, strict=True):
        _panel(axis, frame[frame["reading"] == reading].set_index("trial"), trials)
        axis.set_title(LOOK[reading], loc="left")
        axis.set_yticks(range(len(trials)), [name.removeprefix(f"{BASE}_") for name in trials])
        if axis is not axes[0]:
            axis.set_yticklabels([])
    axes[0].set_xlabel(f"perplexity against the trial {BASE} (%)")
    return figure


def compared(results: Results) -> pd.DataFrame:
    """A row a trial and reading: perplexity relative to the base trial's under the same mask, each
    against the pretrained model in its own run, less one, over all documents (``change``) and of
    each (``documents``), and ``distant_density``."""
    scores, masks = results.search_documents, results.recipe
    if scores.empty or BASE not in set(scores["trial"]):
        return pd.DataFrame()
    scores = above_pretrained(scores).assign(loss=lambda s: s["nll"] / s["tokens"])
    loss = scores.groupby(["trial", "reading", "document"], sort=False)["loss"].mean()
    shares = masks[masks["kind"] == "routed"].set_index(["trial", "reading"])["distant_density"]
    rows = []
    for (trial, reading), own in loss.groupby(level=[0, 1], sort=False):
        if trial == BASE or (BASE, reading) not in shares.index:
            continue
        apart = own.droplevel([0, 1]) - loss[BASE, reading]
        rows.append({
            "trial": trial, "reading": reading, "change": np.expm1(apart.mean()),
            "documents": np.expm1(apart.to_numpy()),
            "distant_density": shares[trial, reading],
        })  # fmt: skip
    return pd.DataFrame(rows)


def _within(axis: Axes, tick: float) -> bool:
    low, high = axis.get_xlim()
    return low <= tick <= high


def _panel(axis: Axes, rows: pd.DataFrame, trials: list[str]) -> None:
    for y, trial in enumerate(trials):
        if trial not in rows.index:
            continue
        row = rows.loc[trial]
        colour = style.RED if row["change"] > 0 else style.BLUE
        axis.barh(y, 100 * row["change"], 0.62, color=colour, alpha=0.75, zorder=2)
        axis.plot(
            100 * row["documents"], [y] * len(row["documents"]), "o", color=style.INK,
            markersize=3, zorder=3,
        )  # fmt: skip
        right = 100 * max(0.0, row["change"], *row["documents"])
        axis.annotate(
            f"{100 * row['change']:+.1f} ({row['distant_density']:.0%})", (right, y), (5, 0),
            textcoords="offset points", va="center", fontsize=8,
        )  # fmt: skip
    # Linear around zero: what ruins the model must not flatten all else.
    low, high = axis.get_xlim()
    axis.set_xscale("symlog", linthresh=LINEAR, linscale=2)
    axis.set_xlim(min(low, -LINEAR), ROOM * max(high, LINEAR))
    ticks = [tick for tick in (-10, -3, 0, 3, 10, 100) if _within(axis, tick)]
    axis.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    axis.minorticks_off()
    axis.axvline(0, color=style.INK, linewidth=1.2, zorder=4)
    axis.grid(axis="y", visible=False)
