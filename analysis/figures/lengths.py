"""What a mask costs on longer texts than its routers were trained on."""

from __future__ import annotations

from matplotlib.figure import Figure

from analysis import lengths
from analysis.figures import style
from analysis.paper import printed
from analysis.results import Results

CAPTION = (
    "Change of the perplexity against full attention at the same length, on plays, with 95% "
    "intervals over documents, and the share of distant pairs kept. Dashed: the paper's Mistral 7B "
    "on books, routers trained at 1,024 tokens, without intervals; it does not say what share of "
    "the pairs it keeps there."
)
LOOKS = {
    "long_paper": "paper",
    "long_paper_books": "paper on books",
    "long_recipe": "ours",
    "long_heavy_untrained": "heavy",
    "long_longer_allocated": "longer_allocated",
}


def draw(results: Results) -> Figure | None:
    """Cost and density against length; None where nothing was read at several lengths."""
    frame = lengths.table(results)
    if frame["context"].nunique() < 2:
        return None
    figure, (cost, kept) = style.axes(2, 9.2, 3.6)
    for name, role in LOOKS.items():
        own = frame[frame["method"] == lengths.LINES[name]]
        if own.empty:
            continue
        look = style.look(role)
        at = own["trained_at"].iloc[0]
        label = lengths.LINES[name] + (f", trained at {style.short(int(at))}" if at else "")
        cost.errorbar(own["context"], 100 * own["change"], label=label, **look, **style.BAR,
                      yerr=style.spread(own, "change", "low", "high", 100))  # fmt: skip
        kept.plot(own["context"], 100 * own["distant_density"], **look, markersize=5.5)
    rows = printed("long_context")
    cost.plot([row["context"] for row in rows],
              [100 * (row["ppl_topk2"] / row["ppl_full"] - 1) for row in rows], linestyle="--",
              marker="D", markerfacecolor="white", color=style.GREY, markersize=5.5,
              label="the paper's, 2 of 4 groups")  # fmt: skip
    cost.axhline(0, color=style.INK, linewidth=1.2)
    cost.set_ylabel("change of perplexity (%)")
    kept.set_ylabel("distant pairs kept (%)")
    kept.set_ylim(0, 100)
    for axis in (cost, kept):
        style.lengths(axis, [row["context"] for row in rows])
        axis.set_xlabel("tokens of the text")
    style.legend(figure, [cost, kept], 2)
    style.title(figure, "SmolLM2-135M, four plays, one seed; against its full attention")
    return figure
