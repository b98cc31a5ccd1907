"""The recipe's routers on other texts: a panel a corpus, drawn as the Pareto figure is."""

from __future__ import annotations

import re

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from analysis.figures import pareto, style
from analysis.results import Results

CAPTION = (
    "Routers on held-out documents of other corpora than the recipe's, all ours (in brackets the "
    "corpora whose training texts a trial saw): perplexity relative to the pretrained model "
    "against the share of distant pairs kept (window and sinks aside). Bars: bootstrap interval "
    "over documents, paired with pretrained, of the mean over seeds. Grey: routings that learnt "
    "nothing: random routers, groups by position or by token identity where shown, the window "
    "widened to as many pairs, with the same further keys where n-grams are named. Dash-dotted, "
    "where shown: oracles, which keep the distant keys that full attention weighs most. All causal."
)

OFF_SCALE = 0.5  # a trial that is nowhere nearer is told in words: its line would flatten the rest


def draw(results: Results) -> Figure | None:
    """The figure, None without results of the transfer stage."""
    frame = results.transfer
    frame = frame[frame["reading"] != "pretrained"] if len(frame) else frame
    if frame.empty:
        return None
    corpora = list(dict.fromkeys(frame["corpus"]))
    trials = list(dict.fromkeys(frame["trial"]))
    figure, axes = style.panels(len(corpora), 5.5, 4.6)
    for axis, corpus in zip(axes, corpora, strict=True):
        own = frame[frame["corpus"] == corpus]
        near, far = _apart(own)
        pareto.lines(axis, pareto.relative(near), trials)
        _tell(axis, far)
        axis.axhline(1, color=style.INK, linewidth=1.3, zorder=1.5)
        axis.set_xlim(left=0)
        axis.set_xlabel("distant pairs kept (%)")
        first = own.iloc[0]
        name = re.sub(r"-from(\d+)$", r", \1 windows in", corpus)  # as the stage names it
        axis.set_title(
            f"{name}: {first['n_documents']} documents, {first['context']:,} tokens a window",
            loc="left",
        )
    for axis in axes[::2]:
        axis.set_ylabel("perplexity / pretrained perplexity")
    # One panel is too narrow for labels side by side.
    style.legend(figure, axes, min(len(corpora), 2))
    figure.suptitle(
        "Routers on held-out texts of other corpora, measured by us",
        x=0.01,
        ha="left",
        fontsize=11.5,
    )
    return figure


def _apart(frame: pd.DataFrame) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Rows of lines that come near the pretrained model's, and of those that never do; where no
    line comes near, all are drawn."""
    lines = frame.groupby(["trial", "kind", "ngram"])["delta"]
    near = lines.transform("min") < OFF_SCALE
    return (frame[near], frame[~near]) if near.any() else (frame, frame[near])


def _tell(axis: Axes, far: pd.DataFrame) -> None:
    """The range of each trial that is off the scale, in the panel's upper corner."""
    said = [
        f"off the scale: {trial}, {1 + rows['delta'].min():.2f} to {1 + rows['delta'].max():.2f}"
        for trial, rows in far.groupby("trial")
    ]
    axis.text(0.99, 0.99, "\n".join(said), transform=axis.transAxes, ha="right", va="top",
              fontsize=8.5, color=style.INK)  # fmt: skip
