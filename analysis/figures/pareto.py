"""Perplexity against the share of distant pairs kept: finalists, and their controls."""

from __future__ import annotations

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import ScalarFormatter

from analysis.figures import style
from analysis.results import Results

CAPTION = (
    "Hard masks with the routers of the recipe stage's finalists, all ours (in brackets the "
    "corpora whose training texts they saw; read on held-out texts of the recipe's corpus): "
    "perplexity relative to the pretrained model against the share of distant pairs kept (window "
    "and sinks aside). Bars: bootstrap interval over documents, paired with pretrained, of the "
    "mean over seeds. Grey: routings that learnt nothing: random routers, groups by position or by "
    "token identity where shown, the window widened to as many pairs, with the same further keys "
    "where n-grams are named. Dash-dotted, where shown: oracles, which keep the distant keys that "
    "full attention weighs most. All causal. Right: the line at 1 and what is near it."
)
CONTROLS = {
    "random": "random routers",
    "position": "groups by position",
    "token": "groups by token",
    "window": "window and sinks alone, widened",
    "oracle": "oracle: heaviest keys of full attention",
    "oracle_heads": "oracle for each query head",
}
LOOKS = {
    "random": {"color": style.GREY, "marker": "x", "linestyle": ":"},
    "position": {"color": "#A0A0A0", "marker": "+", "linestyle": ":"},
    "token": {"color": "#B8B8B8", "marker": "d", "linestyle": ":"},
    "window": {"color": "#555555", "marker": "v", "linestyle": ":"},
    "oracle": {"color": style.INK, "marker": "*", "linestyle": "-."},
    "oracle_heads": {"color": "#6B6B2A", "marker": "h", "linestyle": "-."},
}
OTHER = {"color": style.GREY, "marker": ".", "linestyle": ":"}  # a kind that has no look yet
HOLLOW = {"linestyle": "--", "markerfacecolor": "white"}  # with n-grams matched word for word


def draw(results: Results) -> Figure | None:
    """The figure, None without finalists of the recipe stage."""
    frame = results.recipe
    frame = frame[frame["final"] & (frame["reading"] != "pretrained")] if len(frame) else frame
    if frame.empty:
        return None
    figure, axes = style.row(2, 11.0, 5.0)
    for axis in axes:
        lines(axis, relative(frame), list(dict.fromkeys(frame["trial"])))
        axis.axhline(1, color=style.INK, linewidth=1.3, zorder=1.5)
        axis.set_xlabel("distant pairs kept (%)")
        axis.set_xlim(left=0)
    axes[0].set_yscale("log")
    axes[0].yaxis.set_major_formatter(ScalarFormatter())
    axes[0].yaxis.set_minor_formatter(ScalarFormatter())
    axes[0].set_ylabel("perplexity / pretrained perplexity")
    axes[0].set_title("All (logarithmic)", loc="left")
    axes[1].set_title("Near the pretrained line", loc="left")
    best = _best(frame)
    axes[1].set_ylim(*_near(best))
    axes[1].set_xlim(0, 115 * best["distant_density"].max())
    style.legend(figure, axes, 2)  # each trial's controls look alike
    first = frame.iloc[0]
    figure.suptitle(
        f"Hard routing, all trained and measured by us: {first['context']:,} tokens, "
        f"{first['n_documents']} held-out books",
        x=0.01, ha="left", fontsize=11.5,
    )  # fmt: skip
    return figure


def relative(frame: pd.DataFrame) -> pd.DataFrame:
    """The frame with perplexity over the pretrained model's as what is drawn."""
    drawn = {"y": "delta", "y_low": "delta_low", "y_high": "delta_high"}
    return frame.assign(**{y: 1 + frame[column] for y, column in drawn.items()})


def lines(axis: Axes, frame: pd.DataFrame, trials: list[str]) -> None:
    """One line with error bars (columns y, y_low, y_high over distant_density) for every trial,
    which looks as its place among ``trials`` says (panels of one figure share them), and for every
    control, by its kind."""
    for (trial, kind, ngram), rows in frame.groupby(["trial", "kind", "ngram"], sort=False):
        if kind == "routed":
            n = trials.index(trial)
            look = {**style.nth(n), "zorder": 3, **(HOLLOW if ngram else {})}
            count = int(rows["seeds"].max())
            texts = rows["trained_on"].iloc[0]
            more = f"saw {texts}, " if texts else ""
            label = f"{trial} ({more}K = {rows['K'].iloc[0]}, {count} seed{'s' * (count > 1)})"
            label += f", with {int(ngram)}-grams" if ngram else ""
        else:
            look = LOOKS.get(kind, OTHER) | (HOLLOW if ngram else {})
            label = CONTROLS.get(kind, kind) + (f", with {int(ngram)}-grams" if ngram else "")
        line = rows.sort_values("distant_density")
        spread = [line["y"] - line["y_low"], line["y_high"] - line["y"]]
        axis.errorbar(
            100 * line["distant_density"], line["y"], [s.clip(lower=0) for s in spread],
            label=label, capsize=2.5, elinewidth=1.1, linewidth=1.3, **look,
        )  # fmt: skip


def _best(frame: pd.DataFrame) -> pd.DataFrame:
    """The points of the trial whose worst one is best."""
    routed = frame[frame["kind"] == "routed"]
    best = routed.groupby("trial")["delta_high"].max().idxmin()
    return routed[routed["trial"] == best]


def _near(own: pd.DataFrame) -> tuple[float, float]:
    """Limits that hold these points with their bars, and some room."""
    low, high = min(0.0, own["delta_low"].min()), max(0.01, own["delta_high"].max())
    room = 0.25 * (high - low)
    return 1 + low - room, 1 + high + 3 * room
