"""Perplexity against density of hard top-k, beside the paper's Table 7.

Models and texts differ, so the axis is the ratio to the pretrained model's perplexity: 1 is the
pretrained line for all of them.
"""

from __future__ import annotations

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from analysis.figures import style
from analysis.results import Results
from analysis.tables import paper_points

CAPTION = (
    "Hard top-k: perplexity relative to the pretrained model. Left: against the share of distant "
    "pairs kept (window and sinks aside), beside the paper's Table 7 in grey, measured by its "
    "authors on other models and another text (its 25% at top-1 of 4 can only be of distant "
    "pairs). Right: ours alone, against the share of all causal pairs, which bounds the speed. "
    "Bars: bootstrap interval over documents, paired with pretrained."
)
PROBES = {"symmetric": "-", "multi_probe": (0, (1, 1.5))}
APART = ("key_head", "query_head")  # routers that score queries and keys apart
PAPER_SHADES = (style.GREY, "#B0B0B0")


def draw(results: Results) -> Figure | None:
    """The figure, None without results of the top-k stage."""
    frame = results.topk
    frame = frame[frame["mode"] == "hard"] if not frame.empty else frame
    if frame.empty:
        return None
    figure, axes = style.row(2, 11.0, 5.6)
    for axis, column in zip(axes, ("distant_density", "density"), strict=True):
        _ours(axis, frame, column)
        axis.axhline(1, color=style.INK, linewidth=1.3, zorder=1.5)
    axes[0].set_xlim(0, 104)
    axes[1].set_xlim(max(0, 10 * int(10 * frame["density"].min()) - 10), 102)
    _paper(axes[0])
    axes[0].set_ylabel("perplexity / pretrained perplexity")
    axes[0].set_xlabel("distant pairs kept (%)")
    axes[0].set_title("All points, and the paper's", loc="left")
    axes[1].set_xlabel("pairs kept, of all causal pairs (%)")
    axes[1].set_title("Near the pretrained line", loc="left")
    axes[1].set_ylim(*_near(frame))
    keys = _keys(frame)
    figure.legend(handles=keys, loc="outside lower center", ncols=4, frameon=False)
    figure.suptitle(_title(frame, results), x=0.01, ha="left", fontsize=11.5)
    return figure


def _look(frame: pd.DataFrame) -> dict[str, str]:
    """A colour for each variant, in the order of the table."""
    names = list(dict.fromkeys(frame["variant"]))
    return {name: style.CYCLE[i % len(style.CYCLE)] for i, name in enumerate(names)}


def _marker(top_k: float) -> str:
    return style.MARKERS[(int(top_k) - 1) % len(style.MARKERS)]


def _face(balance: str, colour: str) -> str:
    """Filled for the balance that sees the whole sequence, open for the others."""
    return colour if balance == "sinkhorn" else "white"


def _ours(axis: Axes, frame: pd.DataFrame, column: str) -> None:
    look = _look(frame)
    for (variant, balance, probe), rows in frame.groupby(
        ["variant", "balance", "probe"], sort=False
    ):
        line = rows.sort_values(column)
        x, y = 100 * line[column], 1 + line["delta"]
        spread = [line["delta"] - line["delta_low"], line["delta_high"] - line["delta"]]
        axis.errorbar(
            x, y, [part.clip(lower=0) for part in spread], color=look[variant], capsize=2.5,
            linestyle=PROBES.get(probe, "-"), elinewidth=1.1, linewidth=1.2, zorder=3,
        )  # fmt: skip
        for px, py, top_k in zip(x, y, line["top_k"], strict=True):
            axis.plot(
                px, py, _marker(top_k), color=look[variant], zorder=4, markersize=6.5,
                markerfacecolor=_face(balance, look[variant]),
            )  # fmt: skip


def _paper(axis: Axes) -> None:
    """The paper's points, grey and behind ours."""
    points = paper_points().groupby("whose", sort=False)
    for shade, (_, rows) in zip(PAPER_SHADES, points, strict=True):
        axis.plot(100 * rows["distant_density"], 1 + rows["delta"], ":", color=shade, linewidth=1.1)
        for row in rows.to_dict("records"):
            axis.plot(
                100 * row["distant_density"], 1 + row["delta"], _marker(row["top_k"]), color=shade,
                markersize=6, zorder=2,
            )  # fmt: skip


def _near(frame: pd.DataFrame) -> tuple[float, float]:
    """Limits around 1 that hold our points up to 15% off."""
    close = frame[frame["delta"].abs() < 0.15]
    low = min(0.97, 1 + close["delta_low"].min()) if len(close) else 0.95
    high = max(1.05, 1 + close["delta_high"].max()) if len(close) else 1.15
    return low - 0.01, min(high, 1.25) + 0.01


def _keys(frame: pd.DataFrame) -> list[Line2D]:
    """Legend in four columns: colours are variants, fill the balance, lines the probe, shapes k."""
    sizes = frame.groupby("variant")[["K", "sinks", "routers"]].first()
    variants = [
        Line2D([], [], color=colour, linewidth=3, label=f"ours, {name}: {_size(sizes.loc[name])}")
        for name, colour in _look(frame).items()
    ]
    ways = [
        Line2D([], [], color=style.INK, linestyle="", marker="o", label=f"balance: {balance}",
               markerfacecolor=_face(balance, style.INK))
        for balance in dict.fromkeys(frame["balance"])
    ] + [
        Line2D([], [], color=style.INK, linestyle=PROBES.get(probe, "-"), label=f"probe: {probe}")
        for probe in dict.fromkeys(frame["probe"])
    ]  # fmt: skip
    ks = sorted({int(k) for k in frame["top_k"].dropna()} | {1, 2, 3, 4})
    shapes = [
        Line2D([], [], color=style.INK, linestyle="", marker=_marker(k), label=f"top-{k}")
        for k in ks
    ]
    theirs = [
        Line2D([], [], color=shade, linestyle=":", marker="o", label=whose)
        for shade, whose in zip(PAPER_SHADES, paper_points()["whose"].unique(), strict=True)
    ]
    line = Line2D([], [], color=style.INK, linewidth=1.3, label="pretrained")
    blocks = [variants, ways, shapes, [*theirs, line]]
    rows = max(map(len, blocks))
    empty = Line2D([], [], linestyle="", label=" ")
    return [key for block in blocks for key in [*block, *[empty] * (rows - len(block))]]


def _size(row: pd.Series) -> str:
    sides = ", queries and keys apart" if row["routers"] in APART else ""
    return f"K = {row['K']:.0f}, {row['sinks']:.0f} sinks{sides}"


def _title(frame: pd.DataFrame, results: Results) -> str:
    """What was measured, on what: model, text, windows."""
    settings = results.run("topk", frame["cell"].iloc[0]).get("settings") or {}
    parts = [settings.get("model", {}).get("name"), settings.get("corpus", {}).get("source")]
    if context := settings.get("protocol", {}).get("context"):
        parts.append(f"T = {context}")
    parts.append(f"{int(frame['n_documents'].iloc[0])} held-out documents")
    return "Hard top-k at inference: " + ", ".join(str(p) for p in parts if p)
