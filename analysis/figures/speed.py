"""Speed-ups over full attention against length: of attention alone, of a decoding step, of the
whole model; and memory by model, as counted before any weights are there."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from analysis.cells import ROLES
from analysis.figures import style
from analysis.paper import printed
from analysis.results import Results
from analysis.rows import Missing, need, only, with_ends

LOOK = {
    "ours": ("ours", style.BLUE, "o"),
    "paper_k1": ("the paper's decomposition, run here", style.RED, "^"),
}
MACHINE = ["hardware", "heads", "key_heads", "head_dim", "dtype", "window"]
COLUMNS = 3
ROUTING = ["K", "k", "probe", "routers", "extra_keys"]
ROUTERS = {"layer": "a router a layer", "key_head": "a router a key head",
           "query_head": "a router a query head"}  # fmt: skip
MOST = style.MOST - 2  # beside the two of full attention
NAMES = {**ROLES, "untrained": "FocusConfig.recipe(), untrained routers"}
SHORT = {"ours": "recipe", "allocated": "calibrated"}
TITLES = {"forward": "A forward pass", "generation": "Generation after a context"}
SCALE, LIMIT = "cluster", 80
PARTS = {
    "weights": ("weights and routers", style.BLUE), "gathered": ("gathered layers", style.SKY),
    "gradients": ("gradients", style.RED), "optimiser": ("optimiser", style.ORANGE),
    "activations": ("activations", style.GREEN), "cache": ("key/value cache", style.PURPLE),
}  # fmt: skip
PHASES = {"train": "Training routers, 8 devices", "infer": "Reading, one device"}


def draw(results: Results) -> Figure:
    """A row of panels a machine and head layout, a panel a K."""
    frame = only(results.speed, direction="forward")
    frame = need(frame[((frame["k"] == 1) & (frame["probe"] == "symmetric")) |
                       (frame["method"] == "full_other")])  # fmt: skip
    frame = with_ends(frame, results.speed)
    machines = [rows for _, rows in frame.groupby(MACHINE, sort=False)]
    columns = min(COLUMNS, max(rows["K"].nunique() for rows in machines))
    size = (1.4 + 3.9 * columns, 1.1 + 3.9 * len(machines))
    figure, axes = style.axes(columns, *size, rows=len(machines), share=True)
    for n, rows in enumerate(machines):
        _machine(axes[n * columns : (n + 1) * columns], rows)
    return style.finished(figure, 3)


def _machine(axes: list[Axes], rows: pd.DataFrame) -> None:
    """The panels of one machine: K from small to large."""
    first, other = rows.iloc[0], only(rows, method="full_other").sort_values("length")
    base = "full attention" if first["device"] == "cpu" else "FlashAttention"
    axes[0].set_ylabel(f"times as fast as {base} (log scale)")
    for axis, (groups, part) in zip(axes, rows.groupby("K"), strict=False):
        _of_groups(axis, part.sort_values("length"), int(groups))
        if len(other):  # of no K
            axis.plot(other["length"], other["speedup"], "-", color=style.GREY, linewidth=1.3,
                      label="full attention, torch's fastest other kernel", zorder=2)  # fmt: skip
    axes[0].set_title(
        f"{_device(first['hardware'])}, against {base}: {first['heads']:.0f} heads, "
        f"{first['key_heads']:.0f} key heads of {first['head_dim']:.0f}, {first['dtype']}\n"
        f"{axes[0].get_title(loc='left')}", loc="left",
    )  # fmt: skip
    for axis in axes[rows["K"].nunique() :]:
        axis.set_visible(False)


def _of_groups(axis: Axes, rows: pd.DataFrame, groups: int) -> None:
    """Ours and the paper's two calls, the bound of the pairs kept, and the paper's figures."""
    for method, (label, colour, marker) in LOOK.items():
        _line(axis, only(rows, method=method), "length", label, color=colour, marker=marker)
    ours = only(rows[rows["bound"].notna()], method="ours")
    axis.plot(ours["length"], ours["bound"], "--", color=style.INK, linewidth=1.2,
              label="1 / density: if a pair cost the same")  # fmt: skip
    theirs = [row for row in printed("table6") if row["context"] <= rows["length"].max()]
    if rows.iloc[0]["device"] != "cpu" and theirs and groups in (4, 8):
        axis.plot([row["context"] for row in theirs],
                  [row[f"speedup_K{groups}"] for row in theirs], ":", color=style.GREY, marker="x",
                  markersize=6, label="the paper's figures (Table 6, H100)")  # fmt: skip
    _against_full(axis, rows["length"], "tokens", f"{groups} groups",
                  "1: full attention (on a GPU FlashAttention)")  # fmt: skip


def _line(axis: Axes, rows: pd.DataFrame, x: str, label: str, **look: Any) -> None:
    """Speed-ups with their intervals against a column; nothing where there are none."""
    if len(rows):
        style.bars(axis, rows[x], rows, "speedup", 1, label=label, zorder=3, **look)


def _against_full(axis: Axes, lengths: pd.Series, words: str, title: str,
                  base: str = "full attention", ticks: bool = True) -> None:  # fmt: skip
    """The line of what speed-ups are over, and both axes."""
    axis.axhline(1, color=style.INK, linewidth=1.3, label=base, zorder=2)
    if ticks:
        style.speedups(axis)
    style.lengths(axis, lengths)
    axis.set_xlabel(words)
    axis.set_title(title, loc="left")


def _device(name: str) -> str:
    """A device or its hardware as a reader writes it."""
    return "CPU" if name == "cpu" else name


def decode(results: Results) -> Figure:
    """A panel a device and dtype."""
    panels = list(need(results.table("decode")).groupby(["device", "dtype"], sort=False))
    figure, axes = style.axes(len(panels), 1.0 + 4.8 * len(panels), 5.2, share=True)
    for axis, ((device, dtype), rows) in zip(axes, panels, strict=True):
        _steps(axis, rows)
        _against_full(axis, rows["context"], "tokens in the cache",
                      f"{_device(str(device))}, {dtype}")  # fmt: skip
    axes[0].set_ylabel("times as fast as full attention (log scale)")
    return style.finished(figure, 2)


def _steps(axis: Axes, rows: pd.DataFrame) -> None:
    every = list(with_ends(only(rows, method="ours")).groupby(ROUTING, sort=False))
    # The last ones are the recipe's; the first is the plainest.
    for n, (routing, line) in enumerate(every[:1] + every[1:][-(MOST - 1) :]):
        _line(axis, line.sort_values("context"), "context", _name(*routing), **style.nth(n))
    copied = only(rows, method="full_copy").sort_values("context")
    axis.plot(copied["context"], copied["speedup"], ":", color=style.GREY, marker="x",
              markersize=6, label="full attention, cache copied at every step")  # fmt: skip


def _name(groups: float, top_k: float, probe: str, routers: str, extra_keys: float) -> str:
    count = "1 group a token" if top_k == 1 else f"{top_k:.0f} groups a token"
    if probe == "multi_probe" and top_k > 1:
        count = f"{top_k:.0f} groups per query"
    further = f", {extra_keys:.0f} n-gram keys" if extra_keys else ""
    return f"{groups:.0f} groups, {count}, {ROUTERS.get(routers, routers)}{further}"


def whole(results: Results) -> Figure:
    """A panel a phase."""
    frame = need(results.whole)
    phases = [name for name in TITLES if name in set(frame["phase"])]
    figure, axes = style.axes(len(phases), 1.0 + 4.6 * len(phases), 5.2, share=True)
    for axis, phase in zip(axes, phases, strict=True):
        _phase(axis, only(frame, phase=phase).sort_values("length"))
    for axis in axes:
        style.speedups(axis)  # once all that share the scale are drawn
    axes[0].set_ylabel("times as fast as the pretrained model (log scale)")
    return style.finished(figure, 2)


def _phase(axis: Axes, rows: pd.DataFrame) -> None:
    for number, (role, own) in enumerate(rows.groupby("role", sort=False)):
        look = style.look(str(role), number)
        _line(axis, own, "length", NAMES.get(str(role), str(role)), color=look["color"],
              marker=look["marker"])  # fmt: skip
        if "bound" in own and own["bound"].notna().any():
            axis.plot(own["length"], own["bound"], "--", color=look["color"], linewidth=1.2,
                      label=f"if a kept pair cost the same, {SHORT.get(str(role), role)}",
                      zorder=2)  # fmt: skip
    first = rows.iloc[0]
    words = "tokens" if first["phase"] == "forward" else "tokens of the context"
    title = f"{TITLES[first['phase']]} ({_device(first['device'])}, {first['dtype']})"
    _against_full(axis, rows["length"], words, title, "pretrained model", ticks=False)


def plan(results: Results) -> Figure:
    """A panel a phase and a bar a model."""
    path = results.base / "tables" / "plan.csv"
    if not path.is_file():
        raise Missing
    frame = pd.read_csv(path)
    frame = frame[~frame["model"].str.startswith("small-")]  # made here, too small to be seen
    rows = need(only(frame, scale=SCALE)).sort_values("parameters", ascending=False)
    figure, axes = style.axes(2, 11.0, 1.6 + 0.34 * len(rows))
    axes[1].sharex(axes[0])  # of one scale, by the wider of both
    for axis, (phase, title) in zip(axes, PHASES.items(), strict=True):
        _memory(axis, rows, phase)
        axis.set_title(title, loc="left")
    axes[1].set_yticks(range(len(rows)), [])
    return style.finished(figure, 7)


def _memory(axis: Axes, rows: pd.DataFrame, phase: str) -> None:
    left = np.zeros(len(rows))
    for part, (label, colour) in PARTS.items():
        if f"{phase}_{part}" not in rows:
            continue
        width = rows[f"{phase}_{part}"].to_numpy() / 2**30
        axis.barh(range(len(rows)), width, left=left, color=colour, label=label)
        left += width
    for place, total in enumerate(left):
        axis.text(total, place, f" {total:.3g}", va="center", fontsize=8)
    axis.axvline(LIMIT, color=style.INK, linestyle="--", linewidth=1.2, label=f"{LIMIT} GiB")
    axis.set_yticks(range(len(rows)), rows["model"])
    axis.grid(axis="y", visible=False)
    right = max(axis.get_xlim()[1], 1.1 * max(LIMIT, left.max()))
    axis.set(xlim=(0, right), xlabel="GiB of a process")
