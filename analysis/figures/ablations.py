"""Ablations of the paper's setup, one setting changed at a time: ours beside the paper's, and
settings that the paper leaves alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from analysis import ablations
from analysis.figures import style
from analysis.paper import printed
from analysis.results import Results
from analysis.rows import need, only
from analysis.words import either

TITLES = {
    "k": "groups K", "window": "window (tokens)", "tau": "temperature",
    "sinkhorn-iterations": "Sinkhorn iterations", "routing_dim": "routing dimensions",
    "sinks": "sinks", "gate": "training gate", "routers": "routers",
    "dense_every": "full attention: one layer in", "shared_layers": "layers sharing groups",
}  # fmt: skip
ROWS = ("change of perplexity (%),\nrouters alone", "change of perplexity (%),\nall weights",
        "largest group (% of tokens),\nrouters alone",
        "largest group (% of tokens),\nall weights")  # fmt: skip
# By default: its row, colour, marker, name, and how far aside.
LOOKS = {"ablate": (0, style.BLUE, "o", "24 steps", -0.08),
         "tuned": (1, style.BLUE, "o", "24 steps", -0.08),
         "ablate_steps": (0, style.GREEN, "^", "4,000 steps", 0.08),
         "steady": (1, style.ORANGE, "v", "4,000 steps of a small model (its groups alone)",
                    0.08)}  # fmt: skip
BLIND = "steady"  # on a model that hardly reads far: it tells of groups alone
THEIRS = {"ablate": ("centroid_ppl", "dominance_centroid"),
          "tuned": ("finetuned_ppl", "dominance_full_ft")}  # fmt: skip
VALUES = {"eq2": "Eq. 2", "paper": "the\npaper's", "layer": "one a\nlayer",
          "query_head": "one a\nquery head"}  # fmt: skip
CONDITIONS = {"": ("training gate", style.BLUE, "o", -0.08),
              "hard_": ("hard mask", style.RED, "s", 0.08)}  # fmt: skip


def draw(results: Results) -> Figure:
    """A column of panels a setting that the paper changes, too; a row a measure and what learns."""
    frame = only(ablations.table(results), setting=ablations.SETTINGS)
    figure, columns = grid(frame, 11.0, ROWS, 100)
    for setting, own, column in columns:
        own, values = own.sort_values("value"), sorted(set(own["value"]))
        for base, rows in own.groupby("base", sort=False):
            row = LOOKS[str(base)][0]
            panel(column[row], column[row + 2], rows, values, str(base))
        finish(column, [f"{value:g}" for value in values], setting)
    told = "ours: SmolLM2-135M on plays; the paper's: GPT-2 on PG-19, no intervals"
    return style.finished(figure, 4, f"{told}\nours: {read(frame, 'mark')}")


def grid(frame: pd.DataFrame, height: float, labels: Sequence[str],
         most: float) -> tuple[Figure, list[tuple[str, pd.DataFrame, list[Axes]]]]:  # fmt: skip
    """A column of panels a setting of several values, a row a label: perplexity in the first half,
    percent up to ``most`` in the second."""
    known = frame[frame["change"].notna() | frame["largest"].notna()
                  | (frame["value"] == frame["default"])]  # fmt: skip
    shown = need([(str(name), own) for name, own in known.groupby("setting", sort=False)
                  if len(set(own["value"])) > 1])  # fmt: skip
    count = len(shown)
    figure, every = style.axes(count, 0.8 + 2.5 * count, height, rows=len(labels), share=True)
    for first, label in zip(every[::count], labels, strict=True):
        first.set_ylabel(label)
    for first in every[::count][len(labels) // 2 :]:
        first.set_ylim(0, most)
    return figure, [(*own, every[place::count]) for place, own in enumerate(shown)]


def finish(column: list[Axes], names: list[str], setting: str) -> None:
    """No change, values, and the setting's name; a panel of which nothing was read is left out."""
    for number, axis in enumerate(column):
        if not axis.has_data():
            axis.set_axis_off()
        elif number < len(column) // 2:
            axis.axhline(0, color=style.INK, linewidth=1.2)
        axis.set_xticks(range(len(names)), names)
        axis.set_xlim(-0.6, len(names) - 0.4)
    column[0].set_title(TITLES.get(setting, setting.replace("_", " ")), loc="left")


def panel(above: Axes, below: Axes, rows: pd.DataFrame, values: list[Any], base: str) -> None:
    """Ours by one default, above perplexity and below the largest group, and the paper's."""
    _, colour, marker, name, side = LOOKS[base]
    places = [values.index(value) + side for value in rows["value"]]
    ours = {"color": colour, "marker": marker, "label": f"ours, {name}"}
    if base != BLIND:
        style.bars(above, places, from_default(rows), **ours)
    style.bars(below, places, rows, "largest", 1, **ours)
    if base in THEIRS:
        theirs = only(paper(rows["setting"].iloc[0], base, rows["default"].iloc[0]), value=values)
        theirs.index = pd.Index([values.index(each) for each in theirs["value"]])
        above.plot(theirs["change"], linestyle=":", label="the paper's", **style.PAPER)
        below.plot(theirs["largest"].dropna(), linestyle=":", **style.PAPER)


def from_default(rows: pd.DataFrame, prefix: str = "") -> pd.DataFrame:
    """Changes against the default, whose own is none."""
    names = {f"{prefix}{name}": name for name in ("change", "low", "high")}
    own = rows[list(names)].astype(float).rename(columns=names)
    return own.mask(rows["value"] == rows["default"], 0.0)


def paper(setting: str, base: str, default: float) -> pd.DataFrame:
    """The paper's changes in percent, and its largest groups."""
    if setting == "routing_dim":
        rows = [(row["R"], row["ppl"], None) for row in printed("routing_dim") if base == "ablate"]
    else:
        ppl, share = THEIRS[base]
        rows = [(row["value"], row[ppl], row[share])
                for row in printed("table9", parameter=setting)]  # fmt: skip
    frame = pd.DataFrame(rows, columns=["value", "ppl", "largest"], dtype=float)
    own = only(frame, value=default)["ppl"].squeeze()
    return frame.assign(change=100 * (frame["ppl"] / own - 1))


def further(results: Results) -> Figure:
    """The same of settings that the paper leaves alone."""
    own = only(ablations.table(results), base=ablations.DEFAULTS["centroids"])
    frame = own[~own["setting"].isin(ablations.SETTINGS)]
    figure, columns = grid(frame, 5.6, ("change of perplexity (%)", "distant pairs kept (%)"), 104)
    for setting, own, (above, below) in columns:
        own = own.iloc[own["value"].map(rank).argsort()]
        own = own.sort_values("cell", key=lambda cells: cells != own["base"].iloc[0], kind="stable")
        beside(above, below, own)
        finish([above, below], [named(setting, each) for each in own["value"]], setting)
    return style.finished(figure, 2, read(frame))


def read(frame: pd.DataFrame, shown: str = "row") -> str:
    """How many documents and seeds the rows' intervals are over, in words."""
    return (f"intervals over {either(frame['documents'], 'document')}, "
            f"{either(frame['seeds'], 'seed')} a {shown}")  # fmt: skip


def beside(above: Axes, below: Axes, rows: pd.DataFrame) -> None:
    """One setting: a place a value, the training gate beside the hard mask."""
    places = pd.Series(range(len(rows)), rows.index)
    for prefix, (label, colour, marker, side) in CONDITIONS.items():
        style.bars(above, places + side, from_default(rows, prefix), label=label, color=colour,
                   marker=marker, linestyle="")  # fmt: skip
    below.bar(places, 100 * rows["distant_density"].astype(float), 0.5, color=style.GREY)


def rank(value: object) -> tuple[str, float]:
    """Numbers from small to large, words by the alphabet."""
    return ("", float(value)) if isinstance(value, int | float) else (str(value), 0.0)


def named(setting: str, value: float | str) -> str:
    """A value as it stands below the axis."""
    if setting == "dense_every" and value == 0:
        return "none"
    return VALUES.get(value, value) if isinstance(value, str) else f"{value:g}"
