"""Speed-up of a decoding step's attention against the tokens in the cache."""

from __future__ import annotations

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from analysis.figures import style
from analysis.results import Results
from analysis.rows import need, only, with_ends

CAPTION = (
    "One new token's attention over a cache, times as fast as torch's full attention over a "
    "contiguous one; the methods take turns in one run (median; bars: 10th and 90th percentile of "
    "the steps). Grey: the cache copied at every step, as transformers' DynamicCache does. Routing "
    "and the finding of n-gram keys are not in it."
)
ROUTING = ["K", "k", "probe", "routers", "extra_keys"]
ROUTERS = {"layer": "a router a layer", "key_head": "a router a key head",
           "query_head": "a router a query head"}  # fmt: skip
MOST = style.MOST - 2  # beside the two of full attention


def draw(results: Results) -> Figure:
    """A panel a device and dtype."""
    frame = need(results.table("decode"))
    panels = list(frame.groupby(["device", "dtype"], sort=False))
    figure, axes = style.axes(len(panels), 1.0 + 4.8 * len(panels), 5.2, share=True)
    for axis, ((device, dtype), rows) in zip(axes, panels, strict=True):
        _panel(axis, rows)
        axis.set_title(f"{device}, {dtype}", loc="left", fontweight="bold")
    axes[0].set_ylabel("times as fast as full attention")
    style.legend(figure, axes, 2)
    return figure


def _panel(axis: Axes, rows: pd.DataFrame) -> None:
    every = list(with_ends(only(rows, method="ours")).groupby(ROUTING, sort=False))
    # The last ones are the recipe's; the first is the plainest.
    for n, (routing, line) in enumerate(every[:1] + every[1:][-(MOST - 1) :]):
        line = line.sort_values("context")
        style.bars(axis, line["context"], line, "speedup", 1, label=_name(*routing), zorder=3,
                   **style.nth(n))  # fmt: skip
    copied = only(rows, method="full_copy").sort_values("context")
    axis.plot(copied["context"], copied["speedup"], ":", color=style.GREY, marker="x",
              markersize=6, label="full attention, cache copied at every step")  # fmt: skip
    axis.axhline(1, color=style.INK, linewidth=1.3, label="full attention", zorder=2)
    style.speedups(axis)
    style.lengths(axis, rows["context"])
    axis.set_xlabel("tokens in the cache")


def _name(groups: float, top_k: float, probe: str, routers: str, extra_keys: float) -> str:
    count = "1 group a token" if top_k == 1 else f"{top_k:.0f} groups a token"
    if probe == "multi_probe" and top_k > 1:
        count = f"{top_k:.0f} groups per query"
    further = f", {extra_keys:.0f} n-gram keys" if extra_keys else ""
    return f"{groups:.0f} groups, {count}, {ROUTERS.get(routers, routers)}{further}"
