"""Rivals at equal density: who keeps most of the quality with as many pairs."""

from __future__ import annotations

import pandas as pd
from matplotlib.figure import Figure

from analysis.cells import labels
from analysis.figures import style
from analysis.figures.quality import finish
from analysis.results import Results
from analysis.rivals import ABOUT, CONTROLS, OURS, rows
from analysis.rows import Missing, only
from analysis.tables import plural

CAPTION = (
    "Change of perplexity against the adapted model under full attention, on the same windows of "
    "unseen books. Ours, and the four rivals that cost least at the middle budget; the others, and "
    "controls, stand in the table `rivals`. Methods differ in what their choice "
    "costs: an oracle scores every pair, SparQ a quarter of it, Quest and MoBA one per block, "
    "ours one product of a token and each centroid. Bars: 95% interval over documents (and seeds, "
    "where there are several), paired."
)
MINE = ("ours", "allocated", "longer_allocated")
# Rivals that leave the weights alone, and no controls of ours.
FROZEN = [role for role in ABOUT if role not in CONTROLS]
RIVALS = style.MOST - len(MINE)
COLOURS = (style.RED, style.ORANGE, style.SKY, style.CYCLE[-1])
REST = [{"color": colour, "marker": each} for colour, each in zip(COLOURS, "sPXv", strict=True)]


def draw(results: Results) -> Figure:
    """Missing where no rival was read beside ours."""
    frame = rows(results)
    frame = frame[pd.to_numeric(frame["budget"], errors="coerce").notna()]  # no mask by name
    if not frame["role"].isin(list(ABOUT)).any():
        raise Missing
    middle = sorted(frame["budget"].unique(), key=float)[frame["budget"].nunique() // 2]
    order = only(frame, budget=middle).sort_values("change").drop_duplicates("role")
    ours = order["role"].isin(MINE)
    best = order[ours | order["role"].isin(FROZEN)]
    best = best[best["role"].isin(MINE) | (best["role"].isin(FROZEN).cumsum() <= RIVALS)]
    figure, (axis,) = style.axes(1, 8.0, 5.4)
    names = labels((results.cells[cell] for cell in best["cell"]), OURS)
    free = iter(REST)
    for cell, role in zip(best["cell"], best["role"], strict=True):
        line = only(frame, cell=cell).sort_values("distant_density")
        look = style.look(role) if role in MINE else {**next(free), "linestyle": "--"}
        style.bars(axis, 100 * line["distant_density"], line, label=names[cell], **look)
    axis.axhline(0, color=style.INK, linewidth=1.4, label="adapted model, full attention")
    finish(figure, axis, frame[frame["cell"].isin(best["cell"])])
    first = frame.iloc[0]
    style.title(figure, f"{first['model']}, {plural(first['documents'], 'unseen book')}, "
                        f"{first['context']:,} tokens")  # fmt: skip
    return figure
