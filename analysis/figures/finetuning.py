"""All weights trained with Focus beside full attention: by text, and from scratch."""

from __future__ import annotations

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from analysis import finetuning
from analysis.figures import style
from analysis.finetuning import TEXTS
from analysis.paper import printed
from analysis.results import Results
from analysis.rows import need, only

CAPTION = (
    "Left: change of the perplexity when all weights are trained with Focus, against full "
    "attention trained as long on the same text: SmolLM2 for 24 steps, small models elsewhere. "
    "95% intervals over documents (and seeds, from scratch). Hollow: the paper's, without "
    "intervals. Right: loss of the training text from scratch, mean of seeds, the band from the "
    "least to the greatest."
)
KEYS = ("texts", "weights", "steps")  # of a place on the axis
CURVES = {"scratch": (style.INK, "-", "full attention"),
          "scratch_focus": (style.BLUE, "-", "Focus, training gate")}  # fmt: skip
CONDITIONS = {"soft": (style.BLUE, "o", "ours, training gate", -0.15),
              "hard": (style.RED, "s", "ours, hard mask, top-2", 0.0)}  # fmt: skip


def draw(results: Results) -> Figure:
    """Two panels, the second where something was trained from scratch."""
    frame = need(only(finetuning.table(results), method="focus"))
    curves = only(results.training, cell=CURVES)
    figure, every = style.axes(2 if len(curves) else 1, 12.4 if len(curves) else 7.0, 3.8)
    by_text(every[0], frame)
    if len(curves):
        course(every[1], curves)
    style.legend(figure, every, 3)
    return figure


def by_text(axis: Axes, frame: pd.DataFrame) -> None:
    """Changes by text and way to train, ours and the paper's."""
    shown = list(dict.fromkeys(zip(*(frame[name] for name in KEYS), strict=True)))
    for condition, (colour, marker, label, side) in CONDITIONS.items():
        own = only(frame, condition=condition)
        if own.empty:
            continue
        places = [shown.index(each) + side
                  for each in zip(*(own[name] for name in KEYS), strict=True)]  # fmt: skip
        style.bars(axis, places, own, label=label, color=colour, marker=marker, linestyle="")
    theirs = [paper(texts, weights) for texts, weights, _ in shown]
    axis.plot([n + 0.15 for n in range(len(shown))], theirs, marker="D", linestyle="",
              color=style.GREY, markerfacecolor="white", label="the paper's",
              markersize=5.5)  # fmt: skip
    axis.axhline(0, color=style.INK, linewidth=1.2)
    axis.set_xticks(range(len(shown)), [f"{texts}\n{weights}\n{steps:,} steps"
                                        for texts, weights, steps in shown])  # fmt: skip
    axis.set(xlim=(-0.5, len(shown) - 0.5),
             ylabel="perplexity against\nfull attention trained alike (%)")  # fmt: skip


def paper(texts: str, weights: str) -> float:
    """The paper's change in percent, of its text of the same kind."""
    if weights == "from scratch":
        (row,) = printed("from_scratch")
        return 100 * (row["ppl_focus"] / row["ppl_full_attention"] - 1)
    (row,) = (each for each in printed("domains") if TEXTS[each["text"]] == texts)
    return 100 * (row["ppl_focus_ft"] / row["ppl_full_attention_ft"] - 1)


def course(axis: Axes, curves: pd.DataFrame) -> None:
    """Losses by step: the mean of seeds over ten steps, and the band of seeds."""
    for name, (colour, line, label) in CURVES.items():
        own = only(curves, cell=name)
        if own.empty:
            continue
        wide = own.pivot_table("loss", "step", "seed").rolling(10, min_periods=1).mean()
        axis.plot(wide.index, wide.mean(axis=1), color=colour, linestyle=line,
                  label=f"{label}, {wide.shape[1]} seed{'s' * (wide.shape[1] > 1)}")  # fmt: skip
        axis.fill_between(wide.index, wide.min(axis=1), wide.max(axis=1), color=colour, alpha=0.2)
    axis.set(xlabel="step", ylabel="training loss (nats per token)")
