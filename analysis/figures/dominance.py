"""Group dominance over training steps, by mitigation, with all weights and with routers alone."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from analysis import stability
from analysis.cells import Cell
from analysis.figures import style
from analysis.results import Results
from analysis.rows import need, only

CAPTION = (
    "Share of tokens in the largest group of a training text, the mean over layers. Left: routers "
    "and all weights learn together; right: routers alone. Bands: 95% interval over layers, one "
    "seed. Dashed: perfect balance. The paper's Table 8 says that all but Sinkhorn fail by step "
    "600 of GPT-2; these are of fewer steps, on SmolLM2 and plays. Stop-gradient and the stronger "
    "balance loss, which end as entropy and balance loss do, stand in the table `stability`."
)
FIRST = ("none", "softmax", "sinkhorn", "causal", "bias", "ema", "recluster")
# Whose setting here is not the paper's, by which others are called.
OWN_WORDS = {"recluster": "recluster six times"}
TRAINED = {True: "all weights", False: "routers alone"}


def draw(results: Results) -> Figure:
    """A panel for what is trained, a line a mitigation."""
    watched = set(results.traces["cell"])
    cells = [each for each in stability.cells(results)
             if each.regime["mitigation"] in FIRST and each.name in watched]  # fmt: skip
    cells.sort(key=lambda each: FIRST.index(each.regime["mitigation"]))
    by = {name: [each for each in cells if each.regime["weights"] == weights]
          for weights, name in TRAINED.items()}  # fmt: skip
    panels = need({name: own for name, own in by.items() if len(own) > 1})
    figure, axes = style.axes(len(panels), 1.0 + 4.8 * len(panels), 4.8, share=True)
    for axis, (name, own) in zip(axes, panels.items(), strict=True):
        _panel(axis, results, own)
        axis.set_title(name, loc="left")
    axes[0].set(ylabel="tokens in the largest group (%)", ylim=(0, None))
    style.legend(figure, axes, 4)
    first = cells[0]
    style.title(figure, f"{first.model}, K = {first.method['num_groups']}, "
                        f"{first.regime['context']} tokens")  # fmt: skip
    return figure


def _panel(axis: Axes, results: Results, cells: Sequence[Cell]) -> None:
    for cell in cells:
        own = only(results.traces, cell=cell.name)
        by_step = 100 * own.groupby("step")["largest_group"].agg(["mean", "sem"])
        mitigation = cell.regime["mitigation"]
        look = style.nth(FIRST.index(mitigation))
        name = OWN_WORDS.get(mitigation, stability.NAMES[mitigation])
        axis.plot(by_step.index, by_step["mean"], markersize=4, markevery=4,
                  label=name.replace("-", " "), **look)  # fmt: skip
        below, above = (by_step["mean"] + sign * 2.05 * by_step["sem"] for sign in (-1, 1))
        style.band(axis, below, above, look["color"])
    axis.axhline(100 / cells[0].method["num_groups"], color=style.INK, linestyle="--",
                 linewidth=1.2)  # fmt: skip
    axis.set_xlabel("training step")
