"""What a mask costs on longer texts than its routers were trained on, and where in them."""

from __future__ import annotations

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from analysis import lengths, positions
from analysis.figures import style
from analysis.paper import printed
from analysis.results import Results
from analysis.rows import Missing, need, only

CAPTION = (
    "Change of the perplexity against full attention at the same length, on plays, with 95% "
    "intervals over documents, and the share of distant pairs kept. Dashed: the paper's Mistral 7B "
    "on books, routers trained at 1,024 tokens, without intervals; it does not say what share of "
    "the pairs it keeps there."
)
POSITIONS = (
    "Plays of 8,192 tokens, by position. Left: what a mask costs there against full attention, "
    "with 95% intervals over documents. Right: how far the groups of the keys there are from those "
    "of the first thousand tokens (total variation of the shares, mean over routers)."
)
LOOKS = {
    "long_paper": "paper",
    "long_paper_steps": "paper_steps",
    "long_paper_books": "paper on books",
    "long_recipe": "ours",
    "long_heavy_untrained": "heavy",
    "long_longer_allocated": "longer_allocated",
}


def draw(results: Results) -> Figure:
    """Cost and density against length; Missing where nothing was read at several lengths."""
    frame = lengths.table(results)
    if frame["context"].nunique() < 2:
        raise Missing
    figure, (cost, kept) = style.axes(2, 9.2, 3.6)
    shown = frame.assign(kept=100 * frame["distant_density"], label=[
        f"{row['method']}, trained at {style.short(int(row['trained_at']))}"
        if pd.notna(row["trained_at"]) else row["method"] for _, row in frame.iterrows()
    ])  # fmt: skip
    lines(cost, kept, shown, "context", "kept")
    rows = printed("long_context")
    cost.plot([row["context"] for row in rows],
              [100 * (row["ppl_topk2"] / row["ppl_full"] - 1) for row in rows], linestyle="--",
              marker="D", markerfacecolor="white", color=style.GREY, markersize=5.5,
              label="the paper's, 2 of 4 groups")  # fmt: skip
    kept.set(ylabel="distant pairs kept (%)", ylim=(0, 100))
    for axis in (cost, kept):
        style.lengths(axis, [row["context"] for row in rows])
    return finish(figure, cost, kept, "tokens of the text")


def by_position(results: Results) -> Figure:
    """Cost and drift against the position."""
    frame = need(positions.table(results))
    figure, (cost, moved) = style.axes(2, 9.2, 3.6)
    lines(cost, moved, frame.assign(label=frame["method"]), "position", "moved")
    moved.set(ylabel="shift of the group shares (%)", ylim=(0, None))
    return finish(figure, cost, moved, "first position of the stretch")


def lines(cost: Axes, beside: Axes, rows: pd.DataFrame, x: str, column: str) -> None:
    """A line an experiment: what it costs, and another column of it."""
    for name, role in LOOKS.items():
        own, look = only(rows, method=lengths.LINES[name]).sort_values(x), style.look(role)
        if len(own):
            style.bars(cost, own[x], own, label=own["label"].iloc[0], **look)
            beside.plot(own[x], own[column], **look, markersize=5.5)


def finish(figure: Figure, cost: Axes, beside: Axes, x: str) -> Figure:
    """Words on the axes, a legend, and what was read."""
    cost.axhline(0, color=style.INK, linewidth=1.2)
    cost.set(xlabel=x, ylabel="change of perplexity (%)")
    beside.set_xlabel(x)
    style.legend(figure, [cost, beside], 2)
    style.title(
        figure,
        "SmolLM2-135M, four plays, one seed; each against the same model with full attention",
    )
    return figure
