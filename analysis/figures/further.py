"""Ablations of the paper's setup in settings that the paper leaves alone."""

from __future__ import annotations

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from analysis import ablations
from analysis.figures import style
from analysis.figures.ablations import grid
from analysis.results import Results
from analysis.rows import only

CAPTION = (
    "The paper's setup with one setting changed that the paper leaves alone (routers alone "
    "trained, SmolLM2, plays, 24 steps). Above: change of perplexity against the default, with 95% "
    "intervals over seeds and documents. Below: distant pairs that the hard mask keeps. Shared: "
    "so many layers use the groups of the first of them."
)
TITLES = {
    "sinks": "sinks", "gate": "training gate", "routers": "routers",
    "dense_every": "full attention: one layer in", "shared_layers": "layers sharing groups",
}  # fmt: skip
CONDITIONS = {"": ("training gate", style.BLUE, "o", -0.08),
              "hard_": ("hard mask", style.RED, "s", 0.08)}  # fmt: skip


def draw(results: Results) -> Figure:
    """Two rows of panels, one a setting."""
    frame = ablations.table(results)
    own = frame[~frame["setting"].isin(ablations.SETTINGS)]
    frame = only(own, base=ablations.DEFAULTS["centroids"])
    figure, columns = grid(frame, 5.6, "distant pairs kept (%)", 104)
    for setting, own, above, below in columns:
        panel(above, below, own.sort_values("value", key=lambda x: x.map(rank)))
        above.set_title(TITLES.get(setting, setting.replace("_", " ")), loc="left")
    style.legend(figure, figure.axes, 2)
    return figure


def panel(above: Axes, below: Axes, rows: pd.DataFrame) -> None:
    """One setting: a place a value, the default's at zero."""
    places = pd.Series(range(len(rows)), rows.index)
    default = rows["value"] == rows["default"]
    for prefix, (label, colour, marker, side) in CONDITIONS.items():
        names = {f"{prefix}{name}": name for name in ("change", "low", "high")}
        own = rows[list(names)].astype(float).mask(default, 0.0).rename(columns=names)
        style.bars(above, places + side, own, label=label, color=colour, marker=marker,
                   linestyle="")  # fmt: skip
    above.axhline(0, color=style.INK, linewidth=1.2)
    below.bar(places, 100 * rows["distant_density"].astype(float), 0.5, color=style.GREY)
    for axis in (above, below):
        axis.set_xticks(list(places), [named(row) for row in rows.itertuples()])
        axis.set_xlim(-0.6, len(rows) - 0.4)


def rank(value: object) -> tuple[str, float]:
    """Numbers from small to large, words by the alphabet."""
    return ("", float(value)) if isinstance(value, int | float) else (str(value), 0.0)


def named(row: object) -> str:
    """A value as it stands below the axis."""
    value, setting = row.value, row.setting  # type: ignore[attr-defined]
    if setting == "dense_every" and value == 0:
        return "none"
    return value.replace("_", "\n") if isinstance(value, str) else f"{value:g}"
