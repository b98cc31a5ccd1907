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
    "Hard top-k: perplexity relative to the pretrained model against the share of causal pairs "
    "kept (window included). Bars: bootstrap interval over documents, paired with pretrained. Grey: "
    "the paper's Table 7, measured by its authors on other models and another text."
)
BALANCES = {"sinkhorn": "-", "causal": "--", "softmax": ":"}


def draw(results: Results) -> Figure | None:
    """The figure, None without results of the top-k stage."""
    frame = results.topk
    frame = frame[frame["mode"] == "hard"] if not frame.empty else frame
    if frame.empty:
        return None
    figure, axes = style.new(11.0, 5.4, columns=2)
    for axis in axes:
        _ours(axis, frame)
        _paper(axis)
        axis.axhline(1, color=style.INK, linewidth=1.3, zorder=1.5)
        axis.set_xlabel("pairs kept, of all causal pairs (%)")
        axis.set_xlim(0, 104)
    axes[0].set_ylabel("perplexity / pretrained perplexity")
    axes[0].set_title("All points", loc="left")
    axes[1].set_title("Near the pretrained line", loc="left")
    axes[1].set_ylim(*_near(frame))
    axes[1].annotate(
        "pretrained", (1, 1), (-4, 3), xycoords=("axes fraction", "data"),
        textcoords="offset points", ha="right", fontsize=8.5, color=style.INK,
    )  # fmt: skip
    figure.legend(handles=_keys(frame), loc="outside lower center", ncols=4, frameon=False)
    figure.suptitle(_title(frame, results), x=0.01, ha="left", fontsize=11.5)
    return figure


def _groups(frame: pd.DataFrame) -> list[tuple[tuple[str, str, str], pd.DataFrame]]:
    return list(frame.groupby(["variant", "balance", "probe"], sort=False, dropna=False))


def _look(frame: pd.DataFrame) -> dict[str, str]:
    """A colour for each variant, in the order of the table."""
    names = list(dict.fromkeys(frame["variant"]))
    return {name: style.CYCLE[i % len(style.CYCLE)] for i, name in enumerate(names)}


def _marker(top_k: float) -> str:
    return style.MARKERS[(int(top_k) - 1) % len(style.MARKERS)]


def _ours(axis: Axes, frame: pd.DataFrame) -> None:
    look = _look(frame)
    for (variant, balance, _probe), rows in _groups(frame):
        ordered = rows.sort_values("density")
        x, y = 100 * ordered["density"], 1 + ordered["delta"]
        below, above = (
            ordered["delta"] - ordered["delta_low"],
            ordered["delta_high"] - ordered["delta"],
        )
        axis.errorbar(
            x, y, [below.clip(lower=0), above.clip(lower=0)], color=look[variant], zorder=3,
            linestyle=BALANCES.get(balance, "-"), capsize=2.5, elinewidth=1.1, linewidth=1.3,
        )  # fmt: skip
        face = look[variant] if balance == "sinkhorn" else "white"
        for px, py, top_k in zip(x, y, ordered["top_k"], strict=True):
            axis.plot(
                px, py, _marker(top_k), color=look[variant], markerfacecolor=face, markersize=6.5,
                zorder=4,
            )  # fmt: skip


def _paper(axis: Axes) -> None:
    """The paper's points, grey and behind ours."""
    for shade, (_, rows) in zip(
        (style.GREY, "#B0B0B0"), paper_points().groupby("whose", sort=False), strict=True
    ):
        axis.plot(
            100 * rows["density"], 1 + rows["delta"], ":", color=shade, linewidth=1.1, zorder=2
        )
        for _, row in rows.iterrows():
            axis.plot(
                100 * row["density"], 1 + row["delta"], _marker(row["top_k"]), color=shade,
                markersize=6, zorder=2,
            )  # fmt: skip


def _near(frame: pd.DataFrame) -> tuple[float, float]:
    """Limits around 1 that hold our points up to 15% off."""
    close = frame[frame["delta"].abs() < 0.15]
    low = min(0.97, 1 + close["delta_low"].min()) if len(close) else 0.95
    high = max(1.05, 1 + close["delta_high"].max()) if len(close) else 1.15
    return low - 0.01, min(high, 1.25) + 0.01


def _keys(frame: pd.DataFrame) -> list[Line2D]:
    """Legend: colours are variants, shapes are k, lines and fill are balances."""
    look = _look(frame)
    sizes = frame.groupby("variant")[["K", "sinks"]].first()
    keys = [
        Line2D(
            [],
            [],
            color=colour,
            linewidth=3,
            label=f"{name} (K = {sizes.loc[name, 'K']:g}, {sizes.loc[name, 'sinks']:g} sinks)",
        )
        for name, colour in look.items()
    ]
    for balance in dict.fromkeys(frame["balance"]):
        face = style.INK if balance == "sinkhorn" else "white"
        keys.append(
            Line2D(
                [],
                [],
                color=style.INK,
                linestyle=BALANCES.get(balance, "-"),
                marker="o",
                markerfacecolor=face,
                label=f"balance: {balance}",
            )
        )
    ks = sorted({int(k) for k in frame["top_k"].dropna()} | {1, 2, 3, 4})
    keys += [
        Line2D([], [], color=style.INK, linestyle="", marker=_marker(k), label=f"top-{k}")
        for k in ks
    ]
    for shade, whose in zip((style.GREY, "#B0B0B0"), paper_points()["whose"].unique(), strict=True):
        keys.append(Line2D([], [], color=shade, linestyle=":", marker="o", label=whose))
    return keys


def _title(frame: pd.DataFrame, results: Results) -> str:
    """What was measured, on what: model, text, windows."""
    settings = results.run("topk", frame["cell"].iloc[0]).get("settings") or {}
    parts = [settings.get("model", {}).get("name"), settings.get("corpus", {}).get("source")]
    if context := settings.get("protocol", {}).get("context"):
        parts.append(f"T = {context}")
    parts.append(f"{int(frame['n_documents'].iloc[0])} held-out documents")
    return "Hard top-k at inference: " + ", ".join(str(p) for p in parts if p)
