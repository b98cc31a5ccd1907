"""The leak: earlier assignments that a new suffix changes, and what the balances cost in
perplexity.
"""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from analysis.figures import style
from analysis.results import Results

CAPTION = (
    "Left: share of a prefix's group assignments that change when its suffix is replaced. "
    "Right: perplexity of the same router and mask with each balance. Bars: "
    "intervals over documents."
)
LOOK = {"sinkhorn": style.RED, "causal": style.BLUE}


def draw(results: Results) -> Figure | None:
    """Two panels of bars, None without results of the leak stage."""
    frame = results.leak
    if frame.empty or "changed" not in frame:
        return None
    panels = [
        ("changed", "earlier assignments changed (%)", 100.0, "A new suffix changes the past")
    ]
    if "ppl" in frame and frame["ppl"].notna().any():
        panels.append(("ppl", "perplexity", 1.0, "Perplexity"))
    figure, axes = style.row(len(panels), 1.0 + 4.6 * len(panels), 4.4)
    for axis, (column, label, factor, title) in zip(axes, panels, strict=True):
        _bars(axis, frame, column, factor)
        axis.set_ylabel(label)
        axis.set_title(title, loc="left")
    figure.legend(
        *axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=4, frameon=False
    )
    return figure


def _bars(axis: Axes, frame: pd.DataFrame, column: str, factor: float) -> None:
    variants, balances = (
        list(dict.fromkeys(frame["variant"])),
        list(dict.fromkeys(frame["balance"])),
    )
    width, tops = 0.8 / len(balances), []
    for i, balance in enumerate(balances):
        rows = frame[frame["balance"] == balance].set_index("variant").reindex(variants)
        x = np.arange(len(variants)) + (i - (len(balances) - 1) / 2) * width
        y = factor * rows[column].to_numpy(float)
        low, high = (_end(rows, column, end, factor) for end in ("low", "high"))
        spread = np.nan_to_num([y - low, high - y]).clip(min=0)
        colour = LOOK.get(balance, style.CYCLE[(i + 2) % len(style.CYCLE)])
        axis.bar(
            x,
            y,
            width * 0.92,
            yerr=spread,
            color=colour,
            capsize=3,
            label=balance,
            error_kw={"elinewidth": 1.1},
        )
        for px, py, top in zip(x, y, y + spread[1], strict=True):
            if np.isfinite(py):
                text = f"{py:.1f}" if factor == 1 or py else "0"
                axis.annotate(
                    text, (px, top), (0, 2), textcoords="offset points", ha="center", fontsize=8.5
                )
                tops.append(top)
    axis.set_xticks(range(len(variants)), variants)
    axis.grid(axis="x", visible=False)
    axis.set_ylim(0, 1.12 * max([*tops, 1e-9]) if max([*tops, 0]) > 0 else 1)


def _end(rows: pd.DataFrame, column: str, end: str, factor: float) -> np.ndarray:
    """An end of the interval, the figure itself where there is none."""
    name = f"{column}_{end}"
    values = rows[name] if name in rows else rows[column]
    return factor * values.to_numpy(float)
