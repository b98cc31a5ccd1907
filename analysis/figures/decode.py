"""Speed-up of a decoding step's attention against the tokens in the cache."""

from __future__ import annotations

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from analysis.figures import style
from analysis.results import Results

CAPTION = (
    "One new token's attention over a cache, times as fast as torch's full attention over a "
    "contiguous one; the methods take turns in one run (median; bars: 10th and 90th percentile of "
    "the steps). Dashed, in the same colour: the bytes of keys and values that full attention "
    "reads over those that ours does, which equal bandwidth would give. Grey: the cache copied at "
    "every step, as transformers' DynamicCache does, timed right after. All ours."
)
ROUTING = ["K", "k", "probe", "routers", "extra_keys"]
ROUTERS = {
    "layer": "a router a layer",
    "key_head": "a router a key head",
    "query_head": "a router a query head",
}


def draw(results: Results) -> Figure | None:
    """A panel a device and dtype, None without results of the decode stage."""
    frame = results.decode
    if frame.empty:
        return None
    panels = list(frame.groupby(["device", "dtype"], sort=False))
    figure, grid = style.grid(1, len(panels), 1.0 + 4.8 * len(panels), 5.2)
    axes = list(grid[0])
    for axis, ((device, dtype), rows) in zip(axes, panels, strict=True):
        _panel(axis, rows)
        axis.set_title(f"{device}, {dtype}", loc="left", fontweight="bold")
    axes[0].set_ylabel("speed-up over full attention (x)")
    style.legend(figure, axes, 2)
    return figure


def _panel(axis: Axes, rows: pd.DataFrame) -> None:
    ours = rows[rows["method"] == "ours"]
    for n, (routing, line) in enumerate(ours.groupby(ROUTING, sort=False)):
        look, ordered = style.nth(n), line.sort_values("context")
        axis.errorbar(
            ordered["context"], ordered["speedup"], style.speedup_bars(ordered), **look,
            markersize=5.5, capsize=2.5, elinewidth=1, label=_name(*routing), zorder=3,
        )  # fmt: skip
        axis.plot(ordered["context"], ordered["bound"], "--", color=look["color"], linewidth=0.9,
                  zorder=2)  # fmt: skip
    copied = rows[rows["method"] == "full_copy"].sort_values("context")
    axis.plot(
        copied["context"], copied["speedup"], ":", color=style.GREY, marker="x", markersize=6,
        label="full attention, cache copied at every step", zorder=2,
    )  # fmt: skip
    axis.axhline(1, color=style.INK, linewidth=1.3, label="full attention", zorder=2)
    style.speedups(axis)
    style.lengths(axis, sorted({int(v) for v in rows["context"]}))
    axis.set_xlabel("tokens in the cache")


def _name(groups: float, top_k: float, probe: str, routers: str, extra_keys: float) -> str:
    count = "1 group a token" if top_k == 1 else f"{top_k:.0f} groups a token"
    if probe == "multi_probe" and top_k > 1:
        count = f"{top_k:.0f} groups a query, 1 a key"
    further = f", {extra_keys:.0f} further keys" if extra_keys else ""
    return f"K = {groups:.0f}, {count}, {ROUTERS.get(routers, routers)}{further}"
