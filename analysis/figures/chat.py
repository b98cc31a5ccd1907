"""What training and masks do to answers, against what they do to perplexity."""

from __future__ import annotations

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from analysis import chat
from analysis.cells import ROLES, Cell
from analysis.figures import style
from analysis.results import Results
from analysis.rows import Missing, only

CAPTION = (
    "How far a model's answers are from the original model's, against its perplexity on plays. "
    "Left: bare questions, shorter than the window, which no mask reaches. Right: after 1,024 "
    "tokens of a play. Numbers beside the points of LoRA: learning rates. Dotted: models "
    "that were adapted to books, whose perplexity on plays was not read. Bars: 95% intervals over "
    "questions and over documents. The paper has no such figure."
)
LORA = {"lora4": "adapted", "lora16": "random", "lora4_steps": "sparq"}  # looks


def draw(results: Results) -> Figure:
    """Divergence against the change of perplexity."""
    every = chat.table(results)
    frame = every.dropna(subset=["gain"])
    lengths = sorted(frame["before"].unique())
    if len(lengths) < 2:
        raise Missing
    figure, axes = style.axes(len(lengths), 9.2, 4.6, share=True)
    for axis, before in zip(axes, lengths, strict=True):
        for block, own in only(frame, before=before).groupby("experiment", sort=False):
            role = str(own["role"].iloc[0])
            look = LORA.get(str(block), role)
            line(axis, own.sort_values("rate"), named(results.cells[own["cell"].iloc[0]]), look)
        for _, row in only(every[every["gain"].isna()], before=before).iterrows():
            look = {**style.look(row["role"]), "marker": "", "linestyle": ":"}
            axis.axhline(
                row["divergence"], label=f"{ROLES[row['role']]} (adapted to books)", **look
            )
        axis.axhline(0, color=style.INK, linewidth=1.2)
        axis.set_xlabel("perplexity on plays against the original model (%)")
        axis.set_title("bare questions" if not before else f"after {before:,} tokens of a play")
    axes[0].set_ylabel("KL divergence of answers (nats per token)")
    style.legend(figure, axes, 2)
    return figure


def named(cell: Cell) -> str:
    """What was trained, and for how long."""
    if cell.block not in LORA:
        return ROLES[cell.role]
    return f"LoRA, rank {cell.regime['rank']}, {cell.steps:,} steps"


def line(axis: Axes, rows: pd.DataFrame, label: str, role: str) -> None:
    """One way to train or to mask; LoRA's points with their learning rates."""
    axis.errorbar(
        100 * rows["gain"], rows["divergence"],
        style.spread(rows, "divergence", 1), style.spread(rows, "gain"),
        label=label, **style.look(role), **style.BAR,
    )  # fmt: skip
    for _, row in rows.dropna(subset=["rate"]).iterrows():
        axis.annotate(f"{row['rate']:g}", (100 * row["gain"], row["divergence"]), xytext=(6, 4),
                      rotation=30, textcoords="offset points", fontsize=7.5, color=style.INK,
                      zorder=5, bbox={"color": "white", "pad": 0.3})  # fmt: skip
