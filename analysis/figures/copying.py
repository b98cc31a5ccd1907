"""How much of a passage that the window has held before a hard mask finds again."""

from __future__ import annotations

from matplotlib.figure import Figure

from analysis.figures import pareto, style
from analysis.results import Results

CAPTION = (
    "Held-out texts whose windows end in a passage that they have held before, all ours: of what "
    "the pretrained model gains (nats) from having read the passage, the share that is left under "
    "a hard mask (what the mask loses on any text counts too), against the share of distant pairs "
    "kept (window and sinks aside). Bars: bootstrap interval over documents of the mean over "
    "seeds. In brackets the corpora whose training texts a trial saw. Grey: routings "
    "that learnt nothing. All causal."
)


def draw(results: Results) -> Figure | None:
    """The figure, None without results of the copying stage."""
    frame = results.copying
    frame = frame[~frame["kind"].isin(["pretrained", "new"])] if len(frame) else frame
    if frame.empty:
        return None
    drawn = {"y": "copied", "y_low": "copied_low", "y_high": "copied_high"}
    percent = frame.assign(**{y: 100 * frame[column] for y, column in drawn.items()})
    figure, (axis,) = style.row(1, 9.2, 5.4)
    pareto.lines(axis, percent, list(dict.fromkeys(frame["trial"])))
    for height, label in ((100, "as the pretrained model"), (0, "as if never read")):
        axis.axhline(height, color=style.INK, linewidth=1.3, zorder=1.5)
        axis.annotate(
            label, (0.01, height), (0, 3), xycoords=("axes fraction", "data"),
            textcoords="offset points", fontsize=8.5,
        )  # fmt: skip
    axis.set_xlim(left=0)
    axis.set_xlabel("distant pairs kept (%)")
    axis.set_ylabel("gain from the first reading that is kept (%)")
    style.legend(figure, [axis], 2)  # each trial's controls look alike
    first = frame.iloc[0]
    figure.suptitle(
        f"A passage of {first['passage']} tokens read twice, measured by us: "
        f"{first['context']:,} tokens, {first['n_documents']} held-out books",
        x=0.01, ha="left", fontsize=11.5,
    )  # fmt: skip
    return figure
