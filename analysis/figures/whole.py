"""Speed of the whole model by the recipe against the pretrained model: a pass, and generation."""

from __future__ import annotations

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from analysis.figures import style
from analysis.results import Results

CAPTION = (
    "The whole model by FocusConfig.recipe(), routing and all, times as fast as the pretrained "
    "model; both take turns in one run (median of ratios within rounds; bars: interval over "
    "rounds). Left: one forward pass without a cache; dashed: the bound, if a kept pair cost what "
    "a pair costs full attention and nothing were added to the time outside attention, which was "
    "measured beside. Right: tokens generated with the cache after a context, which is not timed. "
    "Random, balanced routers. All ours."
)
TITLES = {"forward": "A forward pass", "generation": "Generation after a context"}


def draw(results: Results) -> Figure | None:
    """A panel a phase, None without results of the stages prefill and continuation."""
    frame = results.whole
    if frame.empty:
        return None
    phases = [name for name in TITLES if name in set(frame["phase"])]
    figure, axes = style.grid(1, len(phases), 1.0 + 4.6 * len(phases), 4.6)
    for axis, phase in zip(axes[0], phases, strict=True):
        _panel(axis, frame[frame["phase"] == phase].sort_values("length"))
    for axis in axes[0]:
        style.speedups(axis)  # once all that share the scale are drawn
    axes[0, 0].set_ylabel("speed-up over the pretrained model (x)")
    style.legend(figure, axes[0], 3)
    return figure


def _panel(axis: Axes, rows: pd.DataFrame) -> None:
    spread = [rows["speedup"] - rows["speedup_low"], rows["speedup_high"] - rows["speedup"]]
    axis.errorbar(
        rows["length"], rows["speedup"], [each.clip(lower=0) for each in spread],
        color=style.BLUE, marker="o", capsize=2.5, elinewidth=1, label="recipe", zorder=3,
    )  # fmt: skip
    if "bound" in rows and rows["bound"].notna().any():
        axis.plot(rows["length"], rows["bound"], "--", color=style.INK, linewidth=1.2,
                  label="bound", zorder=2)  # fmt: skip
    axis.axhline(1, color=style.INK, linewidth=1.3, label="pretrained", zorder=2)
    style.lengths(axis, sorted({int(v) for v in rows["length"]}))
    first = rows.iloc[0]
    axis.set_xlabel("tokens" if first["phase"] == "forward" else "tokens of the context")
    axis.set_title(f"{TITLES[first['phase']]} ({first['device']}, {first['dtype']})", loc="left")
