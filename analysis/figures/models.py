"""The paper's setup on other models: every attention type, all weights trained; and how training
went."""

from __future__ import annotations

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from analysis import models, tables
from analysis.cells import Cell, labels
from analysis.comparisons import quality
from analysis.figures import answers, style
from analysis.models import TEXTS, TYPES
from analysis.paper import model_name, printed
from analysis.results import Results
from analysis.rows import need, only
from analysis.words import plural

# By condition, or groups a query: colour, marker, words, and how far aside.
LOOKS = {"soft": (style.BLUE, "o", "ours, training gate", -0.2),
         2: (style.RED, "s", "ours, hard mask, 2 of 4 groups", 0.0)}  # fmt: skip
KEYS = ("texts", "weights", "steps")  # of a place on the axis
CURVES = {"scratch": (style.INK, "-", "full attention"),
          "scratch_focus": (style.BLUE, "--", "Focus, training gate")}  # fmt: skip
CONDITIONS = {
    "soft": (style.BLUE, "o", "ours, training gate", -0.15),
    "hard": (style.RED, "s", "ours, hard mask, 2 of 8 groups (from scratch: of 4)", 0.0),
}
STEPS = 4000  # the paper's
PANELS, LINES = 3, 4


def by_type(results: Results) -> Figure:
    """A place a type."""
    frame = models.types(results)
    shown = need([name for name in TYPES if name in set(frame["attention"])])
    figure, (axis,) = style.axes(1, 8.6, 3.8)
    for key, (colour, marker, label, side) in LOOKS.items():
        own = frame[(frame["condition"] == key) | (frame["top_k"] == key)]
        places = [shown.index(name) + side for name in own["attention"]]
        style.bars(axis, places, own, label=label, color=colour, marker=marker, linestyle="")
    windows(axis, results, shown)
    papers(axis, shown)
    axis.axhline(0, color=style.INK, linewidth=1.2)
    axis.set_xticks(
        range(len(shown)), [f"{name}\n{TYPES[name]}".replace(" + ", "\n+ ", 1) for name in shown]
    )
    axis.set(ylabel="change of perplexity (%)", xlim=(-0.5, len(shown) - 0.5))
    first = frame.iloc[0]
    read = f"{plural(first['documents'], 'article')}, {plural(first['seeds'], 'seed')}"
    return style.finished(figure, 3, f"ours: small models, {read}; against full attention")


def windows(axis: Axes, results: Results, shown: list[str]) -> None:
    """What a window alone costs: what a mask can cost at all."""
    found = {name: models.worth(results, TYPES[name]) for name in shown}
    own = pd.DataFrame([row for row in found.values() if row is not None])
    if own.empty:
        return
    places = [shown.index(name) - 0.1 for name, row in found.items() if row is not None]
    near = results.cells[own["cell"].iloc[0]].method.get("window", 1)
    style.bars(axis, places, own, label=f"ours, {near} near tokens alone", marker="v",
               color=style.ORANGE, linestyle="")  # fmt: skip


def papers(axis: Axes, shown: list[str]) -> None:
    """The paper's models by attention type; those whose figure is the training gate's (its GPT-2)
    with another mark."""
    rows = [row for row in printed("table2") if row["attention"] in shown]
    for row in rows:
        change = 100 * (row["ppl_focus"] / row["ppl_pretrained"] - 1)
        place = shown.index(row["attention"]) + 0.22
        gate = row["model"].startswith("gpt2")
        look = style.PAPER | {"marker": "o" if gate else "s"}
        label = f"the paper's, {'training gate' if gate else 'hard mask'}"
        axis.plot(place, change, linestyle="", label=label, **look)
        axis.annotate(model_name(row["model"]), (place, change), xytext=(5, 2), fontsize=7,
                      textcoords="offset points", color=style.GREY)  # fmt: skip


def finetuned(results: Results) -> Figure:
    """Two panels, the second where something was trained from scratch."""
    frame = need(only(models.tuned(results), method="focus"))
    curves = only(results.training, cell=CURVES)
    figure, every = style.axes(2 if len(curves) else 1, 12.4 if len(curves) else 7.0, 3.8)
    by_text(every[0], frame)
    every[0].set_title("SmolLM2 (24 steps) and small models", loc="left")
    if len(curves):
        course(every[1], curves)
    return style.finished(figure, 3)


def by_text(axis: Axes, frame: pd.DataFrame) -> None:
    """Changes by text and way to train, ours and the paper's."""
    shown = list(dict.fromkeys(zip(*(frame[name] for name in KEYS), strict=True)))
    for condition, (colour, marker, label, side) in CONDITIONS.items():
        own = only(frame, condition=condition)
        if own.empty:
            continue
        places = [shown.index(each) + side
                  for each in zip(*(own[name] for name in KEYS), strict=True)]  # fmt: skip
        style.bars(axis, places, own, label=label, color=colour, marker=marker, linestyle="")
    papers = {n: theirs(texts, weights) for n, (texts, weights, steps) in enumerate(shown)
              if steps >= STEPS or weights == "from scratch"}  # fmt: skip
    axis.plot([n + 0.15 for n in papers], list(papers.values()), linestyle="",
              label=f"the paper's, {STEPS:,} steps", **style.PAPER)  # fmt: skip
    axis.axhline(0, color=style.INK, linewidth=1.2)
    axis.set_xticks(range(len(shown)), [f"{texts}\n{weights}\n{steps:,} steps"
                                        for texts, weights, steps in shown])  # fmt: skip
    axis.set(xlim=(-0.5, len(shown) - 0.5),
             ylabel="perplexity against\nfull attention trained alike (%)")  # fmt: skip


def theirs(texts: str, weights: str) -> float:
    """The paper's change in percent, of this text or its own of the same kind."""
    if weights == "from scratch":
        (row,) = printed("from_scratch")
        return 100 * (row["ppl_focus"] / row["ppl_full_attention"] - 1)
    (row,) = (row for row in printed("domains") if texts in (row["text"], TEXTS[row["text"]]))
    return 100 * (row["ppl_focus_ft"] / row["ppl_full_attention_ft"] - 1)


def course(axis: Axes, curves: pd.DataFrame) -> None:
    """Losses by step: the mean of seeds over ten steps, and the band of seeds."""
    for name, (colour, line, label) in CURVES.items():
        own = only(curves, cell=name)
        if own.empty:
            continue
        wide = own.pivot_table("loss", "step", "seed").rolling(10, min_periods=1).mean()
        axis.plot(wide.index, wide.mean(axis=1), color=colour, linestyle=line,
                  label=f"{label}, {plural(wide.shape[1], 'seed')}")  # fmt: skip
        axis.fill_between(wide.index, wide.min(axis=1), wide.max(axis=1), color=colour, alpha=0.2)
    axis.set_title("From scratch", loc="left")
    axis.set(xlabel="step", ylabel="training loss (nats per token)")


def training(results: Results) -> Figure:
    """A line an experiment, at most four; a panel a number of steps, the greatest first."""
    frame = need(tables.training(results))
    every = [cell for cell in results.cells.values() if cell.name in set(frame["cell"])]
    trained = [cell for cell in every if cell.role != "small" and cell.block not in answers.LORA]
    trained = trained or every
    final = set(only(quality(results), final=True)["cell"])  # before those of searches
    trained.sort(key=lambda cell: cell.name not in final)
    lengths = sorted({cell.steps or 0 for cell in trained}, reverse=True)[:PANELS]
    figure, axes = style.axes(len(lengths), 1 + 5.2 * len(lengths), 6.2)
    colours = iter([*style.CYCLE, *style.OTHERS, style.INK, style.GREY])  # each cell has its own
    for axis, steps in zip(axes, lengths, strict=True):
        own = [cell for cell in trained if (cell.steps or 0) == steps][:LINES]
        names = labels(own)
        shared = set.intersection(*(set(only(frame, cell=cell.name)["seed"]) for cell in own))
        for cell, colour in zip(own, colours, strict=False):
            course = only(frame, cell=cell.name, seed=shared).groupby("step")["loss"]
            axis.plot(course.mean(), label=told(cell, names[cell.name]), color=colour)
            style.band(axis, course.min(), course.max(), colour)
        axis.set(xlabel="training step", ylabel="loss (nats per token)")
        axis.set_title(f"{steps:,} steps, {plural(len(shared), 'seed')}", loc="left")
        axis.legend(loc="upper left", bbox_to_anchor=(0, -0.12), frameon=False)
    style.title(figure, "each step has another text, the same for all lines of a panel: jumps are "
                        "the texts', not divergence; the loss axes differ")  # fmt: skip
    return figure


def told(cell: Cell, name: str) -> str:
    """What an ablation of the paper's setup is, and what others are called."""
    if cell.role != "ablation":
        return name
    groups, rate = cell.method["num_groups"], cell.regime["learning_rate"]
    other = [f", {name.replace('_', ' ')} {value}" for name, value in cell.method.items()
             if name in ("temperature", "sinkhorn_iterations")]  # fmt: skip
    return f"the paper's setup, {groups} groups, rate {rate:g}{''.join(other)}"
