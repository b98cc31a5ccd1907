"""Speed-up over full attention against length, with the bound that density sets."""

from __future__ import annotations

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from analysis.figures import style
from analysis.paper import table
from analysis.results import Results

CAPTION = (
    "Speed-up over full attention, forward pass, one group a token; full and sparse are timed in turn in one "
    "run (median; bars: spread of the repetitions). Dashed black: the bound, 1 / density. Grey: the paper's "
    "Table 6, measured by its authors on an H100."
)
LOOK = {
    "ours": ("ours: two flash calls", style.BLUE, "o"),
    "auto": ("auto: picks the backend", style.GREEN, "s"),
    "paper_k1": ("the paper's decomposition, run here", style.RED, "^"),
    "window": ("sliding window alone", style.ORANGE, "v"),
    "flex": ("FlexAttention", style.PURPLE, "D"),
}


def draw(results: Results) -> Figure | None:
    """A panel for each machine and K of the symmetric top-1 timings, None without timings."""
    frame = results.speed
    if not frame.empty:
        frame = frame[
            (frame["k"] == 1) & (frame["direction"] == "forward") & (frame["probe"] == "symmetric")
        ]
    panels = [] if frame.empty else _panels(frame)
    if not panels:
        return None
    figure, axes = style.new(1.4 + 4.6 * len(panels), 5.0, columns=len(panels), sharey=True)
    for axis, (title, rows) in zip(axes, panels, strict=True):
        _panel(axis, rows)
        axis.set_title(title, loc="left")
    axes[0].set_ylabel("speed-up over full attention (x)")
    handles: dict[str, object] = {}
    for axis in axes:
        for handle, label in zip(*axis.get_legend_handles_labels(), strict=True):
            handles.setdefault(label, handle)
    figure.legend(
        handles.values(), handles.keys(), loc="outside lower center", ncols=4, frameon=False
    )
    return figure


def _panels(frame: pd.DataFrame) -> list[tuple[str, pd.DataFrame]]:
    """Rows of one machine, head layout and K, at most four panels: the largest K that the paper has too first."""
    keys = ["hardware", "heads", "key_heads", "head_dim", "dtype", "K"]
    found = []
    for (hardware, heads, key_heads, dim, dtype, groups), rows in frame.groupby(keys, sort=False):
        name = f"{hardware}, K = {int(groups)}\nH = {int(heads)}, Hk = {int(key_heads)}, D = {int(dim)}, {dtype}"
        found.append((name, rows))
    found.sort(key=lambda panel: panel[1]["K"].iloc[0] != 8)
    return found[:3]


def _panel(axis: Axes, rows: pd.DataFrame) -> None:
    for method, (label, colour, marker) in LOOK.items():
        line = rows[rows["method"] == method].sort_values("length")
        if line.empty:
            continue
        full = line["speedup"] * line["median_s"]
        spread = [
            (line["speedup"] - full / line["high_s"]).clip(lower=0),
            (full / line["low_s"] - line["speedup"]).clip(lower=0),
        ]
        axis.errorbar(
            line["length"], line["speedup"], spread, color=colour, marker=marker, markersize=5.5, capsize=2.5, elinewidth=1,
            label=label, zorder=4 if method == "ours" else 3,
        )  # fmt: skip
    _bound(axis, rows)
    _paper(axis, int(rows["K"].iloc[0]), set(rows["length"]))
    axis.axhline(1, color=style.INK, linewidth=1.3, label="full attention", zorder=2)
    _crossover(axis, rows)
    axis.set_yscale("log", base=2)
    top = axis.get_ylim()[1]
    ticks = [t for t in (0.125, 0.25, 0.5, 1, 2, 4, 8, 16, 32, 64) if t <= top]
    axis.set_yticks(ticks, [f"{t:g}" for t in ticks])
    style.lengths(axis, sorted(int(v) for v in set(rows["length"])))
    axis.set_xlabel("tokens")


def _bound(axis: Axes, rows: pd.DataFrame) -> None:
    line = rows[rows["method"] == "ours"].sort_values("length")
    if not line.empty and line["bound"].notna().any():
        axis.plot(
            line["length"],
            line["bound"],
            "--",
            color=style.INK,
            linewidth=1.2,
            label="bound: 1 / density",
            zorder=2,
        )


def _paper(axis: Axes, groups: int, shown: set[int]) -> None:
    """Table 6 at the lengths that this panel covers."""
    if groups not in (4, 8):
        return
    points = [
        (r["context"], r[f"speedup_K{groups}"])
        for r in table("table6")["rows"]
        if r["context"] <= max(shown)
    ]
    if points:
        axis.plot(
            *zip(*points, strict=True), ":", color=style.GREY, marker="x", markersize=6, label="paper's figures (Table 6, H100)",
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
            f"ours is faster from {style.short(at)}", (at, 0), (3, 6), xycoords=("data", "axes fraction"),
            textcoords="offset points", fontsize=8.5, color=style.BLUE,
        )  # fmt: skip
