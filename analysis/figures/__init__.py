"""Figures from result files. Only what has result files is drawn."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from matplotlib.figure import Figure

from analysis.figures import (
    ablations,
    architectures,
    benchmarks,
    chat,
    contents,
    copying,
    decode,
    dominance,
    equal,
    finetuning,
    further,
    ladder,
    leak,
    lengths,
    plan,
    quality,
    rivals,
    ruler,
    speech,
    speed,
    style,
    timed,
    training,
    whole,
)
from analysis.results import Results
from analysis.rows import Missing


class Shown(NamedTuple):
    """A figure: what draws it (Missing without result files), its title and what it shows."""

    draw: Callable[[Results], Figure]
    title: str
    caption: str


FIGURES = {
    "quality": Shown(quality.draw, "Quality against pairs kept", quality.CAPTION),
    "quality_core": Shown(quality.core, "The same on the core's texts", quality.CAPTION),
    "kinds": Shown(quality.kinds, "Quality by kind of text", quality.KINDS),
    "rivals": Shown(rivals.draw, "Other methods on the same model", rivals.CAPTION),
    "timed": Shown(timed.draw, "Quality against time", timed.CAPTION),
    "controls": Shown(equal.draw, "Groups and controls at equal budgets", equal.CAPTION),
    "searches": Shown(equal.searches, "One setting changed at a time", equal.SEARCH),
    "architectures": Shown(
        architectures.draw, "The paper's setup on five attention types", architectures.CAPTION
    ),
    "ladder": Shown(
        ladder.draw,
        "Cost of a mask against the size of the model, with the forecast",
        ladder.CAPTION,
    ),
    "finetuning": Shown(
        finetuning.draw, "All weights trained, with Focus and without", finetuning.CAPTION
    ),
    "lengths": Shown(lengths.draw, "Texts longer than those of training", lengths.CAPTION),
    "benchmarks": Shown(
        benchmarks.draw, "Benchmarks, and how far a mask reaches them", benchmarks.CAPTION
    ),
    "chat": Shown(chat.draw, "How far answers move from the original model's", chat.CAPTION),
    "positions": Shown(
        lengths.by_position, "What a mask costs, by position in a long text", lengths.POSITIONS
    ),
    "ruler": Shown(ruler.draw, "Long-context tasks", ruler.CAPTION),
    "ablations": Shown(ablations.draw, "The paper's setup, one setting changed", ablations.CAPTION),
    "further": Shown(
        further.draw, "The paper's setup, settings that it leaves alone", further.CAPTION
    ),
    "dominance": Shown(dominance.draw, "Group dominance by mitigation", dominance.CAPTION),
    "contents": Shown(contents.draw, "What groups hold", contents.CAPTION),
    "speech": Shown(speech.draw, "Parts of speech by group", speech.CAPTION),
    "information": Shown(contents.told, "What groups tell of a token", contents.INFORMATION),
    "training": Shown(training.draw, "The course of training", training.CAPTION),
    "copying": Shown(copying.draw, "What perplexity hides: a passage read twice", copying.CAPTION),
    "leak": Shown(leak.draw, "What balancing over the sequence leaks", leak.CAPTION),
    "speed": Shown(speed.draw, "Speed of attention against length", speed.CAPTION),
    "decode": Shown(decode.draw, "Speed of a decoding step", decode.CAPTION),
    "plan": Shown(plan.draw, "What it takes: memory by model", plan.CAPTION),
    "whole": Shown(whole.draw, "Speed of the whole model", whole.CAPTION),
}


def write(results: Results, folder: Path) -> list[Path]:
    """Draw every figure that has result files to `<name>.png` and `<name>.svg`; the paths
    written."""
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for name, shown in FIGURES.items():
        paths = [folder / f"{name}.{suffix}" for suffix in ("png", "svg")]
        try:
            figure = shown.draw(results)
        except Missing:
            for path in paths:  # a figure of an older run must not outlive its result files
                path.unlink(missing_ok=True)
            continue
        read = figure.get_suptitle()  # what was read, where the figure says it
        style.title(figure, f"{shown.title}\n{read}" if read else shown.title)
        written += style.save(figure, paths)
    return written
