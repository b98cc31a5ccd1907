"""Speed of the whole model under masks against the pretrained model: a pass, and generation."""

from __future__ import annotations

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from analysis.cells import ROLES
from analysis.figures import style
from analysis.results import Results
from analysis.rows import need, only

CAPTION = (
    "The whole model with two groups per query (FocusConfig.recipe()), routing and n-gram keys and "
    "all, times as fast as the pretrained model; all take turns in one run (median of ratios "
    "within rounds; bars: interval over rounds). Left: one forward pass without a cache; dashed: "
    "the bound, if a kept pair cost what a pair costs full attention and nothing were added. "
    "Right: tokens generated with the cache after a context, which is not timed."
)
NAMES = {**ROLES, "untrained": "FocusConfig.recipe(), untrained routers"}
SHORT = {"ours": "recipe", "allocated": "calibrated"}
TITLES = {"forward": "A forward pass", "generation": "Generation after a context"}


def draw(results: Results) -> Figure:
    """A panel a phase."""
    frame = need(results.whole)
    phases = [name for name in TITLES if name in set(frame["phase"])]
    figure, axes = style.axes(len(phases), 1.0 + 4.6 * len(phases), 4.6, share=True)
    for axis, phase in zip(axes, phases, strict=True):
        _panel(axis, only(frame, phase=phase).sort_values("length"))
    for axis in axes:
        style.speedups(axis)  # once all that share the scale are drawn
    axes[0].set_ylabel("times as fast as the pretrained model (log scale)")
    style.legend(figure, axes, 2)
    return figure


def _panel(axis: Axes, rows: pd.DataFrame) -> None:
    for number, (role, own) in enumerate(rows.groupby("role", sort=False)):
        look = style.look(str(role), number)
        style.bars(axis, own["length"], own, "speedup", 1, color=look["color"], zorder=3,
                   marker=look["marker"], label=NAMES.get(str(role), str(role)))  # fmt: skip
        if "bound" in own and own["bound"].notna().any():
            axis.plot(own["length"], own["bound"], "--", color=look["color"], linewidth=1.2,
                      label=f"upper bound by pairs kept, {SHORT.get(str(role), role)}",
                      zorder=2)  # fmt: skip
    axis.axhline(1, color=style.INK, linewidth=1.3, label="pretrained model", zorder=2)
    style.lengths(axis, rows["length"])
    first = rows.iloc[0]
    axis.set_xlabel("tokens" if first["phase"] == "forward" else "tokens of the context")
    axis.set_title(f"{TITLES[first['phase']]} ({first['device']}, {first['dtype']})", loc="left")
