"""The leak: earlier assignments that a new suffix changes."""

from __future__ import annotations

from matplotlib.figure import Figure

from analysis import tables
from analysis.cells import labels
from analysis.figures import style
from analysis.results import Results
from analysis.rows import need, only

CAPTION = (
    "Share of a prefix's group assignments that change when its suffix is replaced by another "
    "document's; under the causal balance none may. Bars: 95% interval over documents."
)
LOOK = {"sinkhorn": style.RED, "causal": style.BLUE}
NAMES = {"paper_sinks": "with four sinks, our gate"}
SAYS = {"sinkhorn": "balanced over the sequence (Sinkhorn)", "causal": "balanced causally"}


def draw(results: Results) -> Figure:
    """Bars by experiment and balance."""
    frame = need(tables.leak(results))
    cells = list(dict.fromkeys(frame["cell"]))
    balances = list(dict.fromkeys(frame["balance"]))
    names = labels(results.cells[cell] for cell in cells) | NAMES
    figure, (axis,) = style.axes(1, 2.4 + 1.9 * len(cells), 4.4)
    width = 0.8 / len(balances)
    for number, balance in enumerate(balances):
        own = only(frame, balance=balance)
        places = [cells.index(cell) + (number - (len(balances) - 1) / 2) * width
                  for cell in own["cell"]]  # fmt: skip
        axis.bar(
            places, 100 * own["changed"], 0.92 * width, label=SAYS.get(balance, balance), capsize=3,
            yerr=style.spread(own, "changed"), color=LOOK.get(balance, style.PURPLE),
        )  # fmt: skip
        for place, row in zip(places, own.itertuples(), strict=True):
            top = 100 * max(row.changed, row.changed_high)
            axis.annotate(f"{100 * row.changed:.1f}", (place, top), (0, 2), ha="center",
                          fontsize=8.5, textcoords="offset points")  # fmt: skip
    axis.set_xticks(range(len(cells)), [names[cell] for cell in cells])
    axis.grid(axis="x", visible=False)
    axis.set_ylabel("earlier assignments changed (%)")
    style.legend(figure, [axis], 1)
    return figure
