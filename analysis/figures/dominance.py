"""Group dominance over training steps, by mitigation, with all weights and with routers alone."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from scipy import stats

from analysis import stability
from analysis.cells import Cell
from analysis.figures import style
from analysis.results import Results
from analysis.rows import need, only

CAPTION = (
    "Share of tokens in the largest group of a training text, the mean over layers. Above: the "
    "pretrained SmolLM2 for a few steps; below: a small model for as many as the paper's. Left: "
    "routers and all weights learn together; right: routers alone. Bands: 95% interval over "
    "layers, one seed. Dashed: perfect balance. The paper's Table 8 says that all but Sinkhorn "
    "fail by step 600 of GPT-2. Its other mitigations stand in the table `stability`."
)
FIRST = ("none", "softmax", "sinkhorn", "causal", "bias")
TRAINED = {True: "all weights", False: "routers alone"}


def draw(results: Results) -> Figure:
    """A row of panels for a model, a panel for what is trained, a line a mitigation."""
    watched = set(results.traces["cell"])
    cells = [each for each in stability.cells(results)
             if each.regime["mitigation"] in FIRST and each.name in watched]  # fmt: skip
    cells.sort(key=lambda each: FIRST.index(each.regime["mitigation"]))
    models = list(dict.fromkeys((each.model, each.steps) for each in cells))
    panels = {(model, weights): [each for each in cells if (each.model, each.steps) == model
                                 and each.regime["weights"] == weights]
              for model in models for weights in TRAINED}  # fmt: skip
    need([own for own in panels.values() if len(own) > 1])
    figure, axes = style.axes(2, 10.6, 1.2 + 3.6 * len(models), rows=len(models), share=True)
    for axis, ((model, weights), own) in zip(axes, panels.items(), strict=True):
        axis.set_title(f"{model[0]}, {TRAINED[weights]}", loc="left")
        axis.set_ylim(0, 100)
        _panel(axis, results, own)
    for axis in axes[::2]:
        axis.set_ylabel("tokens in the largest group (%)")
    style.legend(figure, axes, 4)
    style.title(figure, f"{cells[0].method['num_groups']} groups; dashed: even")
    return figure


def _panel(axis: Axes, results: Results, cells: Sequence[Cell]) -> None:
    for cell in cells:
        own = only(results.traces, cell=cell.name)
        every = own.groupby("step")["largest_group"]
        by_step, layers = 100 * every.agg(["mean", "sem"]), int(every.size().max())
        mitigation = cell.regime["mitigation"]
        look = style.nth(FIRST.index(mitigation))
        axis.plot(by_step.index, by_step["mean"], markersize=4, markevery=max(1, len(by_step) // 5),
                  label=stability.NAMES[mitigation].replace("-", " "), **look)  # fmt: skip
        wide = float(stats.t.ppf(0.975, layers - 1)) * by_step["sem"]
        below, above = by_step["mean"] - wide, (by_step["mean"] + wide).clip(upper=100)
        style.band(axis, below, above, look["color"])
    if cells:
        axis.axhline(100 / cells[0].method["num_groups"], color=style.INK, linestyle="--",
                 linewidth=1.2)  # fmt: skip
    axis.set_xlabel("training step")
