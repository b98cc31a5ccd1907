"""How much of a passage that the window has held before a hard mask finds again."""

from __future__ import annotations

from matplotlib.figure import Figure

from analysis.cells import labels
from analysis.copied import copied
from analysis.figures import style
from analysis.results import Results
from analysis.rows import need

CAPTION = (
    "Windows that end in a passage that they have held before: of what the same model gains under "
    "full attention (nats) from having read the passage, the share that is left under a mask (what "
    "it loses on any text counts too). Whiskers: 95% interval over seeds and documents."
)


def draw(results: Results) -> Figure:
    """A bar an experiment and budget, at most seven."""
    frame = need(copied(results))
    names = labels(results.cells[cell] for cell in dict.fromkeys(frame["cell"]))
    frame = frame.sort_values("copied").head(style.MOST)
    figure, (axis,) = style.axes(1, 8.0, 1.6 + 0.5 * len(frame))
    told = [f"{names[row['cell']]}, {'with' if row['ngram'] else 'without'} n-gram keys\n"
            f"{row['distant_density']:.0%} of the distant pairs"
            for _, row in frame.iterrows()]  # fmt: skip
    axis.barh(told, 100 * frame["copied"], 0.55, color=style.BLUE,
              xerr=style.spread(frame, "copied"),
              error_kw={"capsize": 3, "ecolor": style.INK})  # fmt: skip
    axis.axvline(100, color=style.INK, linewidth=1.3, label="as full attention")
    axis.set_xlim(left=min(0.0, 110 * frame["copied_low"].min()))
    axis.set_xlabel("gain from the first reading that is kept (%)")
    style.legend(figure, [axis], 2)
    first = frame.iloc[0]
    style.title(figure, f"{first['documents']} documents ({first['texts']})")
    return figure
