"""What groups hold, what they tell of a token, whether they stay even, what their balance leaks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from scipy import stats

from analysis import ablations, contents, evenness, tables
from analysis.cells import Cell, labels
from analysis.contents import CATEGORIES
from analysis.figures import style
from analysis.results import Results
from analysis.rows import need, only

# By name; lines of all others are faint, or no eye would keep them apart.
FIRST = ("none", "softmax", "sinkhorn", "causal", "bias")
OTHERS = "other mitigations"
FAINT: dict[str, Any] = {"color": style.GREY, "linewidth": 1.0, "alpha": 0.6, "zorder": 1}
WATCHED = "stable"  # experiments of the pretrained model
TRAINED = {True: "all weights", False: "routers alone"}
LOOK = {"sinkhorn": style.RED, "causal": style.BLUE}
NAMES = {"paper_sinks": "with four sinks, our gate"}
SAYS = {"sinkhorn": "balanced over the sequence (Sinkhorn)", "causal": "balanced causally"}


def purity(results: Results) -> Figure:
    """A line a way to group."""
    frame = need(contents.table(results))
    figure, (axis,) = style.axes(1, 8.0, 4.6)
    for number, (by, name) in enumerate(contents.WAYS.items()):
        by_layer(axis, only(frame, by=by), "purity", name, number)
    axis.set(ylim=(0, 100), ylabel="tokens of their group's part of speech (%)")
    return finish(figure, axis, frame, 2)


def told(results: Results) -> Figure:
    """A line a label."""
    frame = need(only(contents.information(results), cell=contents.OWN))
    figure, (axis,) = style.axes(1, 8.0, 4.6)
    there = [name for name in contents.NAMES if name in set(frame["about"])]
    for number, about in enumerate(there):
        own, name = only(frame, about=about), contents.NAMES[about]
        by_layer(axis, own, "information", name, number)
    axis.axhline(0, color=style.INK, linewidth=1.2)
    axis.set_ylabel("mutual information\n(0: chance, 1: identical)")
    return finish(figure, axis, frame, 3)


def by_layer(axis: Axes, rows: pd.DataFrame, value: str, name: str, number: int) -> None:
    """A line over the layers with the band of its interval."""
    own = rows[rows["layer"] != "all"].set_index("layer")
    own.index, look = own.index.astype(int), style.nth(number)
    axis.plot(own.index, own[value], label=name, markersize=4.5, **look)
    style.band(axis, own["low"], own["high"], look["color"])


def finish(figure: Figure, axis: Axes, frame: pd.DataFrame, columns: int) -> Figure:
    """Layers below, a legend, and what was read."""
    axis.set_xlabel("layer")
    read = f"Routers of the paper's setup on {int(frame['documents'].max())} plays"
    return style.finished(figure, columns, read)


def speech(results: Results) -> Figure:
    """A panel a layer."""
    own = need(only(contents.right(results), by="groups"))
    layers = sorted(own["layer"].unique())
    shown = list(dict.fromkeys([layers[0], layers[len(layers) // 2], layers[-1]]))
    figure, every = style.axes(len(shown), 1.6 + 3.1 * len(shown), 4.6)
    for axis, layer in zip(every, shown, strict=True):
        panel(axis, shares(only(own, layer=layer)), f"layer {layer}")
    every[0].set_ylabel("group")
    return figure


def shares(own: pd.DataFrame) -> pd.DataFrame:
    """Percent of a group's tokens by part of speech, a row a group; the last, all tokens."""
    counts = own.groupby("group")[list(CATEGORIES)].sum()
    found = 100 * counts.div(counts.sum(axis=1), axis=0)
    most = found.to_numpy()
    order = np.lexsort((-most.max(axis=1), most.argmax(axis=1)))
    whole = 100 * counts.sum() / counts.to_numpy().sum()
    found.index = found.index.astype(str)
    return pd.concat([found.iloc[order], whole.to_frame("all").T])


def panel(axis: Axes, table: pd.DataFrame, title: str) -> None:
    """One layer's groups, with the number in each cell."""
    values = table.to_numpy()
    axis.imshow(values, cmap="Blues", vmin=0, vmax=100, aspect="auto")
    for (row, column), value in np.ndenumerate(values):
        axis.text(column, row, f"{value:.0f}", ha="center", va="center", fontsize=8,
                  color="white" if value > 55 else style.INK)  # fmt: skip
    axis.axhline(len(values) - 1.5, color=style.INK, linewidth=1.2)
    axis.set_xticks(range(len(CATEGORIES)), CATEGORIES, rotation=40, ha="right", fontsize=8)
    axis.set_yticks(range(len(values)), table.index)
    axis.grid(visible=False)
    axis.set_title(title, loc="left")


def dominance(results: Results) -> Figure:
    """A row of panels for a model, a panel for what is trained, a line a mitigation."""
    cells = sorted(evenness.traced(results), key=_place)
    models = list(dict.fromkeys((each.model, each.steps) for each in cells))
    panels = {(model, weights): [each for each in cells if (each.model, each.steps) == model
                                 and each.regime["weights"] == weights]
              for model in models for weights in TRAINED}  # fmt: skip
    need([own for own in panels.values() if sum(map(_named, own)) > 1])
    figure, axes = style.axes(2, 10.6, 1.2 + 3.6 * len(models), rows=len(models), share=True)
    for axis, ((model, weights), own) in zip(axes, panels.items(), strict=True):
        axis.set_title(f"{model[0]}, {TRAINED[weights]}", loc="left")
        axis.set_ylim(0, 100)
        _panel(axis, results, own)
    for axis in axes[::2]:
        axis.set_ylabel("tokens in the largest group (%)")
    return style.finished(figure, 4, f"{cells[0].method['num_groups']} groups; dashed: even")


def _named(cell: Cell) -> bool:
    return cell.regime["mitigation"] in FIRST


def _place(cell: Cell) -> int:
    return FIRST.index(cell.regime["mitigation"]) if _named(cell) else len(FIRST)


def _panel(axis: Axes, results: Results, cells: Sequence[Cell]) -> None:
    for cell in cells:
        own = only(results.traces, cell=cell.name)
        every = own.groupby("step")["largest_group"]
        by_step, layers = 100 * every.agg(["mean", "sem"]), int(every.size().max())
        if not _named(cell):
            axis.plot(by_step.index, by_step["mean"], label=OTHERS, **FAINT)
            continue
        mitigation = cell.regime["mitigation"]
        look = style.nth(_place(cell))
        axis.plot(by_step.index, by_step["mean"], markersize=4, markevery=max(1, len(by_step) // 5),
                  label=ablations.NAMES[mitigation].replace("-", " "), **look)  # fmt: skip
        wide = float(stats.t.ppf((1 + results.confidence) / 2, layers - 1)) * by_step["sem"]
        below, above = by_step["mean"] - wide, (by_step["mean"] + wide).clip(upper=100)
        style.band(axis, below, above, look["color"])
    if cells:
        axis.axhline(100 / cells[0].method["num_groups"], color=style.INK, linestyle="--",
                 linewidth=1.2)  # fmt: skip
    axis.set_xlabel("training step")


def uneven(results: Results) -> Figure:
    """A column for what is trained, a line a mitigation: by layer above, over steps below."""
    cells = [cell for cell in evenness.traced(results) if _named(cell)]
    cells = sorted((each for each in cells if each.block.startswith(WATCHED)), key=_place)
    need(cells)
    figure, axes = style.axes(2, 10.6, 7.6, rows=2, share=True)
    for column, (weights, name) in enumerate(TRAINED.items()):
        above, below = axes[column], axes[2 + column]
        for cell in (each for each in cells if each.regime["weights"] == weights):
            looks, look = evenness.by_step(results, cell), style.nth(_place(cell))
            label = ablations.NAMES[cell.regime["mitigation"]].replace("-", " ")
            last = looks.iloc[-1]
            above.plot(last.index, last, label=label, markersize=4, **look)
            median = looks.median(axis=1)
            below.plot(median.index, median, label=label, markersize=4,
                       markevery=max(1, len(median) // 5), **look)  # fmt: skip
        above.set_title(name, loc="left")
        above.set_xlabel("layer")
        below.set_xlabel("training step")
    for axis in axes:
        axis.set_yscale("log", base=2)
        axis.yaxis.set_major_formatter("{x:g}")
    groups = cells[0].method["num_groups"]
    for axis, where in ((axes[0], "at the last step"), (axes[2], "median layer")):
        axis.set_ylabel(f"1 + CV\N{SUPERSCRIPT TWO} of the sizes, {where}\n"
                        f"(1: even, {groups}: all tokens in one)")  # fmt: skip
    return style.finished(figure, 3, f"{cells[0].model}, {groups} groups")


def leak(results: Results) -> Figure:
    """Marks by experiment and balance: where nothing leaks there would be no bar."""
    frame = need(tables.leak(results))
    cells = list(dict.fromkeys(frame["cell"]))
    names = labels(results.cells[cell] for cell in cells) | NAMES
    figure, (axis,) = style.axes(1, 2.4 + 1.9 * len(cells), 4.4)
    for number, (balance, own) in enumerate(frame.groupby("balance", sort=False)):
        places = [cells.index(cell) + 0.24 * (number - 0.5) for cell in own["cell"]]
        look = {"color": LOOK.get(str(balance), style.PURPLE), "marker": style.MARKERS[number]}
        style.bars(axis, places, own, "changed", label=SAYS.get(str(balance), balance),
                   linestyle="", **look)  # fmt: skip
        for place, changed in zip(places, 100 * own["changed"], strict=True):
            axis.annotate(f"{changed:.1f}", (place, changed), (7, 3), fontsize=9,
                          textcoords="offset points", color=look["color"])  # fmt: skip
    axis.axhline(0, color=style.INK, linewidth=1.2)
    axis.set_xticks(range(len(cells)), [names[cell] for cell in cells])
    axis.set(xlim=(-0.5, len(cells) - 0.5), ylabel="earlier assignments changed (%)")
    axis.grid(axis="x", visible=False)
    return style.finished(figure, 1, f"{int(frame['documents'].max())} plays")
