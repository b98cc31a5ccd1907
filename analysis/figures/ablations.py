"""Ablations of the paper's setup, one setting changed at a time: ours beside the paper's."""

from __future__ import annotations

from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from analysis import ablations
from analysis.figures import style
from analysis.paper import printed
from analysis.results import Results
from analysis.rows import need, only

CAPTION = (
    "Above: change of the perplexity under the training gate against the default (K = 8, window "
    "128, temperature 0.1, 10 Sinkhorn iterations, 16 routing dimensions). Below: tokens in the "
    "largest group, the mean over layers. Filled: ours with 95% intervals over documents, SmolLM2 "
    "on plays after 24 steps, and after the paper's 4,000 on texts of 256 tokens; below also a "
    "small model on articles after 4,000 (both with shorter windows, counted as the paper's that "
    "they stand for). Hollow: the paper's GPT-2 on PG-19, without intervals."
)
TITLES = {
    "k": "groups K", "window": "window (tokens)", "tau": "temperature",
    "sinkhorn-iterations": "Sinkhorn iterations", "routing_dim": "routing dimensions",
}  # fmt: skip
LOOKS = {"centroids": (style.BLUE, "o", "routers alone"),
         "joint": (style.RED, "s", "with all weights")}  # fmt: skip
STEADY = {"centroids": (style.GREEN, "^", "routers alone"),
          "joint": (style.ORANGE, "v", "with all weights")}  # fmt: skip
THEIRS = {"centroids": ("centroid_ppl", "dominance_centroid"),
          "joint": ("finetuned_ppl", "dominance_full_ft")}  # fmt: skip


def draw(results: Results) -> Figure:
    """Two rows of panels, one a setting."""
    frame = only(ablations.table(results), setting=TITLES)
    figure, columns = grid(frame, 6.2, "tokens in the largest group (%)", 100)
    for setting, own, above, below in columns:
        own, values = own.sort_values("value"), sorted(set(own["value"]))
        for base, rows in own.groupby("base", sort=False):
            if base in ablations.STEADY.values():
                steady(above, below, rows, values)
            else:
                panel(above, below, rows, values, str(rows["trained"].iloc[0]), setting)
        above.axhline(0, color=style.INK, linewidth=1.2)
        for axis in (above, below):
            axis.set_xticks(range(len(values)), [f"{value:g}" for value in values])
        above.set_title(TITLES[setting], loc="left")
    style.legend(figure, figure.axes, 4)
    return figure


def grid(frame: pd.DataFrame, height: float, share: str,
         most: float) -> tuple[Figure, list[tuple[str, pd.DataFrame, Axes, Axes]]]:  # fmt: skip
    """Two panels for each setting that has several values, with its rows: change of the perplexity,
    and below it a share in percent, up to ``most``."""
    known = frame[frame["change"].notna() | frame["largest"].notna()
                  | (frame["value"] == frame["default"])]  # fmt: skip
    shown = need([(str(name), own) for name, own in known.groupby("setting", sort=False)
                  if len(set(own["value"])) > 1])  # fmt: skip
    count = len(shown)
    figure, every = style.axes(count, 0.8 + 2.5 * count, height, rows=2, share=True)
    every[0].set_ylabel("change of perplexity (%)")
    every[count].set(ylabel=share, ylim=(0, most))
    panels = zip(shown, every[:count], every[count:], strict=True)
    return figure, [(*own, above, below) for own, above, below in panels]


def panel(above: Axes, below: Axes, rows: pd.DataFrame, values: list[Any], trained: str,
          setting: str) -> None:  # fmt: skip
    """Ours and the paper's of one way to train, above perplexity and below the largest group."""
    colour, marker, name = LOOKS[trained]
    side = -0.08 if trained == "centroids" else 0.08
    places = [values.index(value) + side for value in rows["value"]]
    ours = {"color": colour, "marker": marker, "linestyle": "-"}
    style.bars(above, places, from_default(rows), label=f"ours, {name}", **ours)
    style.bars(below, places, rows, "largest", 1, **ours)
    theirs = paper(setting, trained, rows["default"].iloc[0])
    there = [row for row in theirs if row["value"] in values]
    hollow: dict[str, Any] = {"color": colour, "marker": marker, "linestyle": ":",
                              "markerfacecolor": "white", "markersize": 5.5}  # fmt: skip
    at = [values.index(row["value"]) + side for row in there]
    above.plot(at, [row["change"] for row in there], label=f"the paper's, {name}", **hollow)
    known = [(place, row["largest"]) for place, row in zip(at, there, strict=True)
             if row["largest"] is not None]  # fmt: skip
    below.plot([place for place, _ in known], [share for _, share in known], **hollow)


def from_default(rows: pd.DataFrame) -> pd.DataFrame:
    """Changes against the default, whose own is none."""
    apart = rows["value"] != rows["default"]
    return rows.assign(**{each: rows[each].where(apart, 0.0) for each in ("change", "low", "high")})


def steady(above: Axes, below: Axes, rows: pd.DataFrame, values: list[Any]) -> None:
    """After as many steps as the paper's: the largest group and, of routers alone, perplexity (all
    weights are of a model that hardly reads far)."""
    trained = str(rows["trained"].iloc[0])
    colour, marker, name = STEADY[trained]
    look = {"color": colour, "marker": marker, "linestyle": "-",
            "label": f"ours, 4,000 steps, {name}"}  # fmt: skip
    places = [values.index(value) + 0.16 for value in rows["value"]]
    style.bars(below, places, rows, "largest", 1, **look)
    if trained == "centroids":
        style.bars(above, places, from_default(rows), **look)


def paper(setting: str, trained: str, default: float) -> list[dict[str, Any]]:
    """The paper's changes in percent, and its largest groups."""
    if setting == "routing_dim":
        if trained != "centroids":
            return []
        rows = [{"value": row["R"], "ppl": row["ppl"], "largest": None}
                for row in printed("routing_dim")]  # fmt: skip
    else:
        ppl, share = THEIRS[trained]
        rows = [{"value": row["value"], "ppl": row[ppl], "largest": row[share]}
                for row in printed("table9", parameter=setting)]  # fmt: skip
    (base,) = (row["ppl"] for row in rows if row["value"] == default)
    return [{**row, "change": 100 * (row["ppl"] / base - 1)} for row in rows]
