"""Speed-up of a training step, forward and backward, by gate: its attention, and the whole step."""

from __future__ import annotations

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from analysis.figures import style
from analysis.results import Results

CAPTION = (
    "A training step, forward and backward, times as fast as with torch's full attention (median "
    "of ratios within rounds; bars: the least and the greatest, none of a single round). "
    "Attention alone: over random assignments, one layer. Whole step: the frozen model with fresh "
    "routers, every layer run again in the backward pass, the same beside the attention for all. "
    "The gate log weighs every pair and so stays quadratic; sparse_log, on CPU, forms the pairs of "
    "its groups alone. All ours."
)
LOOK = {"log": (style.BLUE, "o"), "sparse_log": (style.GREEN, "s")}


def draw(results: Results) -> Figure | None:
    """A panel for each of the stages training and training_step that has results, None without
    any."""
    named = {"attention alone": results.training, "whole step": results.training_step}
    panels = {what: frame for what, frame in named.items() if not frame.empty}
    if not panels:
        return None
    figure, axes = style.grid(1, len(panels), 6.2 if len(panels) == 1 else 10.4, 4.4)
    for axis, (what, frame) in zip(axes[0], panels.items(), strict=True):
        _panel(axis, what, frame)
    for axis in axes[0]:
        style.speedups(axis)  # once all that share the scale are drawn
    axes[0, 0].set_ylabel("speed-up over full attention (x)")
    style.legend(figure, axes[0], 3)
    return figure


def _panel(axis: Axes, what: str, frame: pd.DataFrame) -> None:
    for n, (method, line) in enumerate(frame[frame["method"] != "full"].groupby("method")):
        rows = line.sort_values("length")
        colour, marker = LOOK.get(method, (style.CYCLE[(n + 3) % 6], style.MARKERS[(n + 3) % 6]))
        spread = [rows["speedup"] - rows["speedup_low"], rows["speedup_high"] - rows["speedup"]]
        axis.errorbar(
            rows["length"], rows["speedup"], [s.clip(lower=0) for s in spread], color=colour,
            marker=marker, capsize=2.5, elinewidth=1, label=f"gate {method}",
        )  # fmt: skip
    axis.axhline(1, color=style.INK, linewidth=1.3, label="full attention", zorder=2)
    style.lengths(axis, sorted({int(v) for v in frame["length"]}))
    axis.set_xlabel("tokens")
    first = frame.iloc[0]
    axis.set_title(
        f"{what} ({first['device']}, {first['dtype']})\nK = {first['K']:.0f}, "
        f"top-{first['k']:.0f}, w = {first['window']:.0f}", loc="left",
    )  # fmt: skip
