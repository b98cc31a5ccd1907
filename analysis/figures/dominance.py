"""Group dominance over training steps, by mitigation."""

from __future__ import annotations

from matplotlib.figure import Figure

from analysis import stability
from analysis.figures import style
from analysis.results import Results

CAPTION = (
    "Share of tokens in the largest group of a training text, the mean over layers, while routers "
    "and all weights learn together. Bands: 95% interval over layers, one seed. Dashed: perfect "
    "balance. The paper's Table 8 says that all but Sinkhorn fail by step 600 of GPT-2; these are "
    "of fewer steps, on SmolLM2 and plays."
)
FIRST = ("none", "softmax", "sinkhorn", "causal", "bias", "ema", "recluster")


def draw(results: Results) -> Figure | None:
    """A line a mitigation; None where nothing was watched."""
    cells = [each for each in stability.cells(results) if each.regime["weights"]]
    cells = [each for each in cells if each.regime["mitigation"] in FIRST]
    cells = [each for each in cells if each.name in set(results.traces["cell"])]
    if len(cells) < 2:
        return None
    cells.sort(key=lambda each: FIRST.index(each.regime["mitigation"]))
    figure, (axis,) = style.axes(1, 8.0, 5.0)
    for number, cell in enumerate(cells):
        own = results.traces[results.traces["cell"] == cell.name]
        by_step = 100 * own.groupby("step")["largest_group"].agg(["mean", "sem"])
        look, name = style.nth(number), stability.NAMES[cell.regime["mitigation"]]
        axis.plot(by_step.index, by_step["mean"], markersize=4, markevery=4,
                  label=name.replace("-", " "), **look)  # fmt: skip
        below, above = (by_step["mean"] + sign * 2.05 * by_step["sem"] for sign in (-1, 1))
        axis.fill_between(by_step.index, below, above, color=look["color"], alpha=0.15, linewidth=0)
    groups = cells[0].method["num_groups"]
    axis.axhline(100 / groups, color=style.INK, linestyle="--", linewidth=1.2)
    axis.set_xlabel("training step")
    axis.set_ylabel("tokens in the largest group (%)")
    axis.set_ylim(bottom=0)
    style.legend(figure, [axis], 3)
    style.title(figure, f"{cells[0].model}, K = {groups}, {cells[0].regime['context']} tokens")
    return figure
