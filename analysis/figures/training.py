"""Speed-up of a training step's attention, forward and backward, by gate."""

from __future__ import annotations

from matplotlib.figure import Figure

from analysis.figures import style
from analysis.results import Results

CAPTION = (
    "Attention of a training step, forward and backward, times as fast as torch's full attention "
    "(median of ratios within rounds; bars: the least and the greatest). The gate log weighs every "
    "pair and so stays quadratic; sparse_log forms the pairs of its groups alone. All ours."
)
LOOK = {"log": (style.BLUE, "o"), "sparse_log": (style.GREEN, "s")}


def draw(results: Results) -> Figure | None:
    """One panel, None without results of the training stage."""
    frame = results.training
    if frame.empty:
        return None
    figure, (axis,) = style.row(1, 6.2, 4.4)
    for n, (method, line) in enumerate(frame[frame["method"] != "full"].groupby("method")):
        rows = line.sort_values("length")
        colour, marker = LOOK.get(method, (style.CYCLE[(n + 3) % 6], style.MARKERS[(n + 3) % 6]))
        spread = [rows["speedup"] - rows["speedup_low"], rows["speedup_high"] - rows["speedup"]]
        axis.errorbar(
            rows["length"], rows["speedup"], [s.clip(lower=0) for s in spread], color=colour,
            marker=marker, capsize=2.5, elinewidth=1, label=f"gate {method}",
        )  # fmt: skip
    axis.axhline(1, color=style.INK, linewidth=1.3, label="full attention", zorder=2)
    style.speedups(axis)
    style.lengths(axis, sorted({int(v) for v in frame["length"]}))
    axis.set_xlabel("tokens")
    axis.set_ylabel("speed-up over full attention (x)")
    first = frame.iloc[0]
    axis.set_title(
        f"{first['device']}, {first['dtype']}: K = {first['K']:.0f}, top-{first['k']:.0f}, "
        f"w = {first['window']:.0f}", loc="left",
    )  # fmt: skip
    figure.legend(loc="outside lower center", ncols=3, frameon=False)
    return figure
