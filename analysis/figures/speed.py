"""Speed-up over full attention against length, with the bound that density sets."""

from __future__ import annotations

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from analysis.figures import style
from analysis.paper import printed
from analysis.results import Results
from analysis.rows import need, only, with_ends

CAPTION = (
    "Attention alone, forward pass, one group a token, times as fast as full attention; the "
    "methods are timed in turn in one run (median; bars: spread of the repetitions). Dashed: 1 / "
    "density, which a kernel that is faster per pair than full attention's exceeds. On a GPU, full "
    "attention is FlashAttention, whose kernels the paper's two calls are. Grey crosses: the "
    "paper's Table 6, measured by its authors on an H100."
)
LOOK = {
    "ours": ("ours", style.BLUE, "o"),
    "paper_k1": ("the paper's decomposition, run here", style.RED, "^"),
}
MACHINE = ["hardware", "heads", "key_heads", "head_dim", "dtype", "window"]
COLUMNS = 3


def draw(results: Results) -> Figure:
    """A row of panels a machine and head layout, a panel a K."""
    frame = only(results.speed, direction="forward")
    frame = need(frame[((frame["k"] == 1) & (frame["probe"] == "symmetric")) |
                       (frame["method"] == "full_other")])  # fmt: skip
    machines = [rows for _, rows in frame.groupby(MACHINE, sort=False)]
    columns = min(COLUMNS, max(rows["K"].nunique() for rows in machines))
    size = (1.4 + 3.9 * columns, 1.1 + 3.9 * len(machines))
    figure, axes = style.axes(columns, *size, rows=len(machines), share=True)
    for n, rows in enumerate(machines):
        _machine(axes[n * columns : (n + 1) * columns], rows)
    style.legend(figure, axes, 3)
    return figure


def _machine(axes: list[Axes], rows: pd.DataFrame) -> None:
    """The panels of one machine: K from small to large."""
    first = rows.iloc[0]
    heads = (f"{first['heads']:.0f} heads, {first['key_heads']:.0f} key heads of "
             f"{first['head_dim']:.0f}")  # fmt: skip
    axes[0].set_ylabel("times as fast as full attention")
    for axis, (groups, part) in zip(axes, rows.groupby("K"), strict=False):
        _panel(axis, part, int(groups))
        _fastest(axis, only(rows, method="full_other").sort_values("length"))
        axis.set_title(f"{int(groups)} groups", loc="left", fontweight="bold")
    axes[0].annotate(
        f"{first['hardware']}: {heads}, {first['dtype']}", (0, 1),
        (0, 24), xycoords="axes fraction", textcoords="offset points", fontsize=10.5,
    )  # fmt: skip
    for axis in axes[rows["K"].nunique() :]:
        axis.set_visible(False)


def _panel(axis: Axes, rows: pd.DataFrame, groups: int) -> None:
    rows = with_ends(rows)
    for method, (label, colour, marker) in LOOK.items():
        line = only(rows, method=method).sort_values("length")
        if len(line):
            style.bars(axis, line["length"], line, "speedup", 1, color=colour, marker=marker,
                       label=label, zorder=3)  # fmt: skip
    ours = only(rows[rows["bound"].notna()], method="ours").sort_values("length")
    axis.plot(ours["length"], ours["bound"], "--", color=style.INK, linewidth=1.2,
              label="1 / density: if a pair cost the same")  # fmt: skip
    if rows.iloc[0]["device"] != "cpu":
        _paper(axis, groups, rows["length"].max())
    axis.axhline(1, color=style.INK, linewidth=1.3, label="full attention", zorder=2)
    style.speedups(axis)
    style.lengths(axis, rows["length"])
    axis.set_xlabel("tokens")


def _fastest(axis: Axes, rows: pd.DataFrame) -> None:
    if len(rows):
        axis.plot(rows["length"], rows["speedup"], "-", color=style.GREY, linewidth=1.3,
                  label="full attention, torch's fastest other kernel", zorder=2)  # fmt: skip


def _paper(axis: Axes, groups: int, most: float) -> None:
    """Table 6 at the lengths that this panel covers."""
    rows = [row for row in printed("table6") if row["context"] <= most]
    if rows and groups in (4, 8):
        axis.plot([row["context"] for row in rows], [row[f"speedup_K{groups}"] for row in rows],
                  ":", color=style.GREY, marker="x", markersize=6,
                  label="the paper's figures (Table 6, H100)")  # fmt: skip
