"""Changes of one setting beside what they change, at equal density."""

from __future__ import annotations

import re

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from analysis.cells import ROLES, Cell, spoken
from analysis.comparisons import quality
from analysis.figures import style
from analysis.figures.ablations import read
from analysis.figures.answers import shares
from analysis.figures.models import told
from analysis.results import Results
from analysis.rows import need, only
from analysis.words import plural

# How a setting is said with its value, and without one.
SAID = {"num_groups": "{} groups", "window": "window of {}", "sinks": "sinks: {}",
        "dense_every": "full attention: one layer in {}", "temperature": "temperature: {}",
        "sinkhorn_iterations": "Sinkhorn iterations: {}", "learning_rate": "learning rate: {}",
        "shared_layers": "{} layers share groups", "gate": "gate: {}"}  # fmt: skip
NEVER = {"hard_from": "soft throughout"}
GATES = {"eq2": "the paper's", "log": "ours"}
MOST_BUDGETS = 4
APART = 0.1  # of the distant pairs: no longer an equal budget
FAR = 4  # times as far from zero as the next one
NUMBER = re.compile(r"\d+(?:\.\d+)?")


def searches(results: Results) -> Figure:
    """A panel an experiment that others were compared with at equal budgets, one below another."""
    frame = only(quality(results), condition="hard", final=False)
    frame = frame[~frame["base_role"].isin(["adapted", "pretrained"])]
    panels = [(key, own) for key, own in frame.groupby(["reading", "texts", "against"], sort=False)]
    panels = sorted(need(panels), key=lambda panel: -panel[1]["cell"].nunique())
    heights = [0.9 + 0.36 * own["cell"].nunique() for _, own in panels]
    figure, every = style.axes(1, 8.6, 1.4 + sum(heights), heights=heights)
    budgets = by_density(frame)
    for axis, ((_, texts, against), own) in zip(every, panels, strict=True):
        base = results.cells[against]
        named = {cell: changed(results.cells[cell], base) for cell in own["cell"]}
        cells = sorted(named, key=lambda cell: in_order(named[cell]))
        words = [named[cell] + apart(only(own, cell=cell, budget=budgets)) for cell in cells]
        dots(axis, own, cells, words, budgets)
        cut(axis, own, cells)
        axis.set_xlabel("change of perplexity (%)")
        name = told(base, ROLES.get(base.role, against))
        axis.set_title(f"Against {name}\n{texts}, {read(own)}", loc="left")
    return style.finished(figure, 2, "the axes differ from panel to panel")


def apart(rows: pd.DataFrame) -> str:
    """What a cell keeps, where it is far more pairs than what it stands against."""
    far = rows[rows["distant_density"] - rows["base_distant_density"] > APART]
    if far.empty:
        return ""
    return f"\n(keeps {shares(far['distant_density'])}, not {shares(far['base_distant_density'])})"


def in_order(name: str) -> tuple[str, list[float]]:
    """Puts values of one setting beside each other, the smallest first."""
    return NUMBER.sub("", name), [float(found) for found in NUMBER.findall(name)]


def by_density(frame: pd.DataFrame) -> list[str]:
    """The budgets, the smallest first."""
    shares = frame.groupby("budget", sort=False)["distant_density"].mean().sort_values()
    return list(shares.index[:MOST_BUDGETS])


def dots(axis: Axes, frame: pd.DataFrame, cells: list[str], names: list[str],
         budgets: list[str]) -> None:  # fmt: skip
    """A row a cell, with a mark and its interval for every budget."""
    looks = dict(zip(budgets, zip(style.shades(len(budgets)), style.MARKERS, strict=False),
                     strict=True))  # fmt: skip
    there = [budget for budget in budgets if budget in set(frame["budget"])]
    for number, budget in enumerate(there):
        own, (shade, marker) = only(frame, budget=budget), looks[budget]
        off = 0.2 * (number - (len(there) - 1) / 2)
        axis.errorbar(
            100 * own["change"], [cells.index(cell) + off for cell in own["cell"]],
            xerr=style.spread(own), linestyle="", color=shade, marker=marker,
            label=_budget(str(budget)), **style.BAR,
        )  # fmt: skip
    axis.axvline(0, color=style.INK, linewidth=1.4)
    axis.set_yticks(range(len(cells)), names, fontsize=9)
    axis.set_ylim(len(cells) - 0.5, -0.5)


def cut(axis: Axes, frame: pd.DataFrame, cells: list[str]) -> None:
    """Ends an axis before a cell that dwarfs all others, and writes down where it lies."""
    ends = 100 * frame[["low", "high"]].set_index(frame["cell"])
    reach = ends.abs().max(axis=1).groupby(level=0).max().sort_values()
    if len(reach) < 3 or reach.iloc[-1] < FAR * reach.iloc[-2]:
        return
    far, near = str(reach.index[-1]), ends.drop(index=reach.index[-1])
    margin = 0.08 * float(near["high"].max() - near["low"].min())
    axis.set_xlim(min(near["low"].min(), 0) - margin, max(near["high"].max(), 0) + margin)
    where = 100 * only(frame, cell=far)["change"]
    least, most = (f"{each:+.0f}" for each in (where.min(), where.max()))
    right = where.mean() > 0
    axis.annotate(f"off the axis: {least} to {most}%", (0.98 if right else 0.02, cells.index(far)),
                  xycoords=("axes fraction", "data"), ha="right" if right else "left", va="center",
                  color=style.INK, backgroundcolor="white", fontsize=9)  # fmt: skip


def changed(cell: Cell, base: Cell) -> str:
    """What a cell changes of another's method and regime, in words; what it is, where that is
    known and something else."""
    if cell.role in ROLES and cell.role != base.role:
        return ROLES[cell.role]
    found = [
        SAID.get(name, name.replace("_", " ") + " {}").format(GATES.get(str(value), value))
        if value is not None
        else NEVER.get(name, f"no {name}")
        for own, other in ((cell.method, base.method), (cell.regime, base.regime))
        for name, value in own.items()
        if other.get(name) != value
    ]
    if not found and cell.start != base.start:
        return f"start: {spoken(str(cell.start)).replace('search lora', 'LoRA')}"
    return ", ".join(found) or cell.name


def _budget(budget: str) -> str:
    """A share in percent; a mask, or a method's own, by name."""
    try:
        return f"asked for: {100 * float(budget):g}% of the distant pairs"
    except ValueError:
        mask = re.fullmatch(r"k(\d+)\.\w+\.(\w+)", budget)
        if mask is None:
            return "the method's own" if budget == "own" else budget
        return f"mask: {plural(int(mask[1]), 'group')} per query, {mask[2]} balance"
