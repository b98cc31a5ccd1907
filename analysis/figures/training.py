"""The course of training: loss against steps."""

from __future__ import annotations

from matplotlib.figure import Figure

from analysis import tables
from analysis.cells import Cell, labels
from analysis.comparisons import quality
from analysis.figures import chat, style
from analysis.results import Results
from analysis.rows import need, only

CAPTION = (
    "Loss on training windows, mean over seeds of at most twenty stretches of the course; shaded: "
    "from the lowest seed to the highest. Losses of routers are those of the gate that they train "
    "with, from some step on the hard mask's own. Each step has another text, the same one for all "
    "lines of a panel, so that they rise and fall together. Small models of ours and LoRA at "
    "several rates are left out."
)

PANELS, LINES = 3, 4


def draw(results: Results) -> Figure:
    """A line an experiment, at most four; a panel a number of steps, the greatest first."""
    frame = need(tables.training(results))
    every = [cell for cell in results.cells.values() if cell.name in set(frame["cell"])]
    trained = [cell for cell in every if cell.role != "small" and cell.block not in chat.LORA]
    trained = trained or every
    final = set(only(quality(results), final=True)["cell"])  # before those of searches
    trained.sort(key=lambda cell: cell.name not in final)
    lengths = sorted({cell.steps or 0 for cell in trained}, reverse=True)[:PANELS]
    figure, axes = style.axes(len(lengths), 1 + 4.6 * len(lengths), 6.2)
    for axis, steps in zip(axes, lengths, strict=True):
        own = [cell for cell in trained if (cell.steps or 0) == steps][:LINES]
        names = labels(own)
        for number, cell in enumerate(own):
            course = only(frame, cell=cell.name).groupby("step")["loss"]
            colour = style.CYCLE[number]  # that of a role may come twice
            axis.plot(course.mean(), label=told(cell, names[cell.name]), color=colour)
            style.band(axis, course.min(), course.max(), colour)
        axis.set(xlabel="training step", ylabel="loss (nats per token)")
        axis.set_title(f"{steps:,} steps", loc="left")
        axis.legend(loc="upper left", bbox_to_anchor=(0, -0.12), frameon=False)
    return figure


def told(cell: Cell, name: str) -> str:
    """What an ablation of the paper's setup is, and what others are called."""
    if cell.role != "ablation":
        return name
    groups, rate = cell.method["num_groups"], cell.regime["learning_rate"]
    return f"the paper's setup, {groups} groups, rate {rate:g}"
