"""The leak: earlier assignments that a new suffix changes, and what causality costs."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from analysis.figures import style
from analysis.results import Results

CAPTION = (
    "Left: share of a prefix's group assignments that change when its suffix is replaced; the "
    "causal balance must show 0. Right: perplexity under the hard "
    "mask with the same router, relative to pretrained, by balance; in brackets the share of all "
    "causal pairs kept, made equal by a wider window where a balance keeps fewer. Bars: intervals "
    "over documents."
)
LOOK = {
    "sinkhorn": style.RED,
    "causal": style.BLUE,
    "softmax": style.GREY,
}


def draw(results: Results) -> Figure | None:
    """Two panels of bars, None without results of the leak stage."""
    frame = results.leak
    if frame.empty or "changed" not in frame:
        return None
    count = 2 if "delta" in frame else 1
    figure, axes = style.row(count, 1.0 + max(4.8, 1.8 * frame["variant"].nunique()) * count, 4.4)
    _bars(axes[0], frame.drop(columns="density", errors="ignore"), "changed")
    axes[0].set_ylabel("earlier assignments changed (%)")
    axes[0].set_title("A new suffix changes the past", loc="left")
    if count == 2:
        _bars(axes[1], frame, "delta")
        axes[1].axhline(0, color=style.INK, linewidth=1.2)
        axes[1].set_ylabel("perplexity against pretrained (%)")
        axes[1].set_title("Hard mask with each balance, equal density", loc="left")
    style.legend(figure, axes, 5)
    return figure


def _bars(axis: Axes, frame: pd.DataFrame, column: str) -> None:
    """A bar for each variant and balance, in percent, with the figure above it."""
    variants = list(dict.fromkeys(frame["variant"]))
    balances = list(dict.fromkeys(frame["balance"]))
    width = 0.8 / len(balances)
    tops = [0.0]
    for i, balance in enumerate(balances):
        rows = frame[frame["balance"] == balance].set_index("variant").reindex(variants)
        x = np.arange(len(variants)) + (i - (len(balances) - 1) / 2) * width
        y, low, high = (_percent(rows, column, end) for end in ("", "_low", "_high"))
        spread = np.nan_to_num([y - low, high - y]).clip(min=0)
        colour = LOOK.get(balance, style.PURPLE)
        axis.bar(
            x, y, width * 0.92, yerr=spread, color=colour, capsize=3, label=balance,
            error_kw={"elinewidth": 1.1},
        )  # fmt: skip
        kept = rows["density"] if "density" in rows else [None] * len(rows)
        for px, py, top, share in zip(x, y, np.maximum(y + spread[1], 0), kept, strict=True):
            if np.isfinite(py):
                text = f"{py:.1f}" if py else "0"
                text += f"\n({share:.0%})" if share is not None else ""
                axis.annotate(
                    text, (px, top), (0, 2), ha="center", fontsize=8, textcoords="offset points"
                )
                tops.append(top)
    axis.set_xticks(range(len(variants)), [name.replace("-", "\n") for name in variants])
    axis.grid(axis="x", visible=False)
    axis.set_ylim(top=1.2 * max(tops) if max(tops) > 0 else 1)


def _percent(rows: pd.DataFrame, column: str, end: str) -> np.ndarray:
    """A column, or an end of its interval (the figure itself where there is none), in percent."""
    name = column + end if column + end in rows else column
    return 100 * rows[name].to_numpy(float)
