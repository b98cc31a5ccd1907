"""How much of a passage that the window has held before a hard mask finds again."""

from __future__ import annotations

from matplotlib.figure import Figure

from analysis.cells import labels
from analysis.copied import copied
from analysis.figures import style
from analysis.results import Results

CAPTION = (
    "Windows that end in a passage that they have held before: of what the same model gains under "
    "full attention (nats) from having read the passage, the share that is left under a mask (what "
    "it loses on any text counts too), against the share of distant pairs kept. Bars: 95% interval "
    "over seeds and documents."
)


def draw(results: Results) -> Figure | None:
    """A line an experiment, at most seven; None where no passage was read twice."""
    frame = copied(results)
    if frame.empty:
        return None
    figure, (axis,) = style.axes(1, 8.0, 5.0)
    cells = list(dict.fromkeys(frame["cell"]))[: style.MOST - 2]
    names = labels(results.cells[cell] for cell in cells)
    for number, cell in enumerate(cells):
        line = frame[frame["cell"] == cell].sort_values("distant_density")
        look = style.look(results.cells[cell].role if not number else "", number)
        axis.errorbar(
            100 * line["distant_density"], 100 * line["copied"],
            style.spread(line, "copied", "copied_low", "copied_high", 100),
            label=names[cell], **style.BAR, **look,
        )  # fmt: skip
    axis.axhline(100, color=style.INK, linewidth=1.3, label="as full attention")
    axis.axhline(0, color=style.INK, linewidth=1.3, linestyle="--", label="as if never read")
    axis.set_xlim(left=0)
    axis.set_xlabel("distant pairs kept (%)")
    axis.set_ylabel("gain from the first reading that is kept (%)")
    style.legend(figure, [axis], 2)
    first = frame.iloc[0]
    style.title(figure, f"A passage read twice: {first['documents']} documents ({first['texts']})")
    return figure
