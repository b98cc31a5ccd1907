"""The recipe's routers on other texts: a panel a corpus, drawn as the Pareto figure is."""

from __future__ import annotations

import re

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


def draw(results: Results) -> Figure | None:
    """The figure, None without results of the transfer stage."""
    frame = results.transfer
    frame = frame[frame["reading"] != "pretrained"] if len(frame) else frame
    if frame.empty:
        return None
    corpora = list(dict.fromkeys(frame["corpus"]))
    trials = list(dict.fromkeys(frame["trial"]))
    figure, axes = style.row(len(corpora), 5.5 * len(corpora), 4.8)
    for axis, corpus in zip(axes, corpora, strict=True):
        own = frame[frame["corpus"] == corpus]
        pareto.lines(axis, pareto.relative(own), trials)
        axis.axhline(1, color=style.INK, linewidth=1.3, zorder=1.5)
        axis.set_xlim(left=0)
        axis.set_xlabel("distant pairs kept (%)")
        first = own.iloc[0]
        name = re.sub(r"-from(\d+)$", r", \1 windows in", corpus)  # as the stage names it
        axis.set_title(
            f"{name}: {first['n_documents']} documents, {first['context']:,} tokens a window",
            loc="left",
        )
    axes[0].set_ylabel("perplexity / pretrained perplexity")
    # One panel is too narrow for labels side by side.
    style.legend(figure, axes, min(len(corpora), 2))
    figure.suptitle(
        "Routers on held-out texts of other corpora, measured by us",
        x=0.01,
        ha="left",
        fontsize=11.5,
    )
    return figure
