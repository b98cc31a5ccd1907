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
    "held-out books. Ours, and the rivals that cost least at the middle budget; oracles, controls "
    "and the other rivals are in the table `rivals`. Choosing keys costs SparQ a quarter of every "
    "product, Quest one product per page, ours one product of a token with each centroid. Bars: "
    "95% interval over documents (and seeds, where there are several), paired."
)
MINE = ("ours", "allocated", "longer_allocated", "sparq_groups")
# Rivals that leave the weights alone: no controls of ours, and no oracles.
FROZEN = [role for role, about in ABOUT.items() if role not in CONTROLS and not about.every]
RIVALS = style.MOST - len(MINE) - 1  # and the model with full attention


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
    for number, (cell, role) in enumerate(zip(best["cell"], best["role"], strict=True)):
        line = only(frame, cell=cell).sort_values("distant_density")
        style.bars(axis, 100 * line["distant_density"], line, label=names[cell],
                   **style.look(role, number))  # fmt: skip
    axis.axhline(0, color=style.INK, linewidth=1.4, label="adapted model, full attention")
    finish(figure, axis, frame[frame["cell"].isin(best["cell"])])
    first = frame.iloc[0]
    style.title(figure, f"{first['model']}, {plural(first['documents'], 'held-out book')}, "
                        f"{first['context']:,} tokens")  # fmt: skip
    return figure
