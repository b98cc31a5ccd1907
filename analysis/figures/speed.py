"""Speed-up over full attention against length, with the bound that density sets."""

from __future__ import annotations

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from analysis.figures import style
from analysis.paper import table
from analysis.results import Results

CAPTION = (
    "Speed-up over full attention, forward pass, one group a token; the methods are timed in turn "
    "in one run (median; bars: spread of the repetitions). Dashed: the bound, 1 / density. Grey "
    "crosses: the paper's Table 6, measured by its authors on an H100."
)
LOOK = {
    "ours": ("ours (backend auto)", style.BLUE, "o"),
    "stripes": ("ours without a compiler", style.GREEN, "s"),
    "paper_k1": ("the paper's decomposition, run here", style.RED, "^"),
    "window": ("sliding window alone", style.ORANGE, "v"),
}
MACHINE = ["hardware", "heads", "key_heads", "head_dim", "dtype", "window"]
COLUMNS = 3


def draw(results: Results) -> Figure | None:
    """A row of panels a machine and head layout, a panel a K; None without timings."""
    frame = results.speed
    if not frame.empty:
        symmetric = (frame["k"] == 1) & (frame["probe"] == "symmetric")
        frame = frame[symmetric & (frame["direction"] == "forward")]
    if frame.empty:
        return None
    machines = [rows for _, rows in frame.groupby(MACHINE, sort=False)]
    columns = min(COLUMNS, max(rows["K"].nunique() for rows in machines))
    figure, grid = style.grid(
        len(machines), columns, 1.4 + 3.9 * columns, 1.1 + 3.9 * len(machines)
    )
    for axes, rows in zip(grid, machines, strict=True):
        _machine(axes, rows)
    style.legend(figure, grid.flat, 4)
    return figure


def _machine(axes: list[Axes], rows: pd.DataFrame) -> None:
    """The panels of one machine: K from small to large."""
    first = rows.iloc[0]
    shape = f"H = {first['heads']:.0f}, Hk = {first['key_heads']:.0f}, D = {first['head_dim']:.0f}"
    axes[0].set_ylabel("speed-up over full attention (x)")
    for axis, (groups, part) in zip(axes, rows.groupby("K"), strict=False):
        _panel(axis, part, int(groups))
        axis.set_title(f"K = {int(groups)}", loc="left", fontweight="bold")
    axes[0].annotate(
        f"{first['hardware']}: {shape}, {first['dtype']}, w = {first['window']:.0f}", (0, 1),
        (0, 24), xycoords="axes fraction", textcoords="offset points", fontsize=10.5,
    )  # fmt: skip
    for axis in axes[rows["K"].nunique() :]:
        axis.set_visible(False)


def _panel(axis: Axes, rows: pd.DataFrame, groups: int) -> None:
    for method, (label, colour, marker) in LOOK.items():
        line = rows[rows["method"] == method].sort_values("length")
        if line.empty:
            continue
        axis.errorbar(
            line["length"], line["speedup"], style.speedup_bars(line), color=colour, marker=marker,
            markersize=5.5, capsize=2.5, elinewidth=1, label=label,
            zorder=4 if method == "ours" else 3,
        )  # fmt: skip
    _bound(axis, rows)
    _paper(axis, groups, set(rows["length"]))
    axis.axhline(1, color=style.INK, linewidth=1.3, label="full attention", zorder=2)
    _crossover(axis, rows)
    style.speedups(axis)
    style.lengths(axis, sorted(int(v) for v in set(rows["length"])))
    axis.set_xlabel("tokens")


def _bound(axis: Axes, rows: pd.DataFrame) -> None:
    line = rows[(rows["method"] == "ours") & rows["bound"].notna()].sort_values("length")
    if not line.empty:
        axis.plot(
            line["length"], line["bound"], "--", color=style.INK, linewidth=1.2,
            label="bound: 1 / density", zorder=2,
        )  # fmt: skip


def _paper(axis: Axes, groups: int, shown: set[int]) -> None:
    """Table 6 at the lengths that this panel covers."""
    if groups not in (4, 8):
        return
    rows = [row for row in table("table6")["rows"] if row["context"] <= max(shown)]
    if rows:
        axis.plot(
            [row["context"] for row in rows], [row[f"speedup_K{groups}"] for row in rows], ":",
            color=style.GREY, marker="x", markersize=6, label="paper's figures (Table 6, H100)",
            zorder=2,
        )  # fmt: skip


def _crossover(axis: Axes, rows: pd.DataFrame) -> None:
    """Mark the shortest timed length from which on ours stays above 1."""
    line = rows[rows["method"] == "ours"].sort_values("length")
    slower = line[line["speedup"] <= 1]["length"]
    faster = line[line["length"] > slower.max()] if len(slower) else line
    if len(slower) and len(faster):
        at = int(faster["length"].iloc[0])
        axis.axvline(at, color=style.BLUE, linewidth=0.9, linestyle=":", zorder=1)
        axis.annotate(
            f"ours is faster from {style.short(at)}", (at, 0), (3, 6),
            xycoords=("data", "axes fraction"), textcoords="offset points", fontsize=8.5,
            color=style.BLUE,
        )  # fmt: skip
