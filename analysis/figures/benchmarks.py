"""Benchmark scores under masks, by how far a mask reaches the prompts at all."""

from __future__ import annotations

import pandas as pd
from matplotlib.figure import Figure

from analysis import benchmarks
from analysis.figures import style
from analysis.results import Results
from analysis.rows import Missing, only

CAPTION = (
    "Change of the score over HellaSwag, ARC-Easy, PIQA and LAMBADA together, against the same "
    "model without a mask. Third line of each place: how many questions have a pair that the mask "
    "can change. Under the paper's window of 128 tokens and without worked examples these are next "
    "to none, so an unchanged score shows nothing there. Bars: 95% intervals over questions, "
    "paired. None of these figures is the paper's."
)
# What masks a line has: its label, its look, and the experiments that it goes through.
LINES = (
    ("the paper's setup", "paper", ("answers_paper", "answers_paper_window")),
    ("the window alone", "window", ("answers_longformer", "answers_window")),
    ("ours (recipe)", "ours", ("answers",)),
)


def draw(results: Results) -> Figure:
    """Points against window and worked examples; Missing where only one of them was read."""
    own = only(benchmarks.table(results), texts=benchmarks.EVERY,
               experiment=[name for line in LINES for name in line[2]])  # fmt: skip
    places = own[["shots", "window"]].drop_duplicates().sort_values(
        ["shots", "window"], ascending=[True, False]
    )  # fmt: skip
    if len(places) < 2:
        raise Missing
    order = {place: n for n, place in enumerate(places.itertuples(index=False, name=None))}
    figure, (axis,) = style.axes(1, 8.0, 4.2)
    for number, (label, role, names) in enumerate(LINES):
        line = only(own, experiment=names)
        where = line[["shots", "window"]].itertuples(index=False, name=None)
        at = [order[place] + 0.09 * (number - 1) for place in where]
        look = style.look(role) | {"linestyle": "none"}
        style.bars(axis, at, line, "points", 1, label=label, **look)
    axis.axhline(0, color=style.INK, linewidth=1.2, label="without a mask")
    axis.set_xticks(list(order.values()), [told(own, *place) for place in order])
    axis.set(xlim=(-0.6, len(order) - 0.4), ylabel="change of the score (points)",
             xlabel="window of the mask, worked examples, questions within its reach")  # fmt: skip
    style.legend(figure, [axis], 4)
    return figure


def told(rows: pd.DataFrame, shots: int, window: int) -> str:
    """A place on the axis in words."""
    own = only(rows, shots=shots, window=window)
    before = f"{shots} examples" if shots else "no examples"
    return f"{window} tokens\n{before}\n{own['exposed_questions_percent'].max():.0f}%"
