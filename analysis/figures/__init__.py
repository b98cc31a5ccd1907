"""Figures from result files. Only what has result files is drawn."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from matplotlib.figure import Figure

from analysis.figures import (
    ablations,
    answers,
    equal,
    groups,
    models,
    pairs,
    quality,
    scale,
    speed,
    style,
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
    "kinds": Shown(quality.kinds, "Quality by kind of text", quality.KINDS),
    "rivals": Shown(quality.beside_rivals, "Other methods on the same model", quality.RIVALS),
    "timed": Shown(quality.by_time, "Quality against time", quality.TIMED),
    "searches": Shown(equal.searches, "One setting changed at a time", equal.SEARCH),
    "architectures": Shown(models.by_type, "The paper's setup on five attention types",
                           models.ARCHITECTURES),
    "ladder": Shown(scale.by_size, "Cost of a mask against the size of the model, with the "
                    "forecast", scale.LADDER),
    "finetuning": Shown(models.finetuned, "All weights trained, with Focus and without",
                        models.FINETUNING),
    "lengths": Shown(scale.by_length, "Texts longer than those of training", scale.LENGTHS),
    "benchmarks": Shown(answers.scores, "Benchmarks, and how far a mask reaches them",
                        answers.BENCHMARKS),
    "chat": Shown(answers.distances, "How far answers move from the original model's",
                  answers.CHAT),
    "positions": Shown(scale.by_position, "What a mask costs, by position in a long text",
                       scale.POSITIONS),
    "ruler": Shown(answers.tasks, "Long-context tasks", answers.RULER),
    "ablations": Shown(ablations.draw, "The paper's setup, one setting changed", ablations.CAPTION),
    "further": Shown(ablations.further, "The paper's setup, settings that it leaves alone",
                     ablations.FURTHER),
    "dominance": Shown(groups.dominance, "Group dominance by mitigation", groups.DOMINANCE),
    "evenness": Shown(groups.uneven, "How uneven groups are, by layer and over steps",
                      groups.EVENNESS),
    "contents": Shown(groups.purity, "What groups hold", groups.CONTENTS),
    "speech": Shown(groups.speech, "Parts of speech by group", groups.SPEECH),
    "information": Shown(groups.told, "What groups tell of a token", groups.INFORMATION),
    "mask": Shown(pairs.picture, "The mask of a head", pairs.PICTURE),
    "training": Shown(models.training, "The course of training", models.TRAINING),
    "copying": Shown(answers.copies, "What perplexity hides: a passage read twice",
                     answers.COPYING),
    "induction": Shown(pairs.induction, "Whether groups keep the pairs that copying needs",
                       pairs.INDUCTION),
    "leak": Shown(groups.leak, "What balancing over the sequence leaks", groups.LEAK),
    "speed": Shown(speed.draw, "Speed of attention against length", speed.CAPTION),
    "decode": Shown(speed.decode, "Speed of a decoding step", speed.DECODE),
    "plan": Shown(speed.plan, "What it takes: memory by model", speed.PLAN),
    "whole": Shown(speed.whole, "Speed of the whole model", speed.WHOLE),
}  # fmt: skip


def write(results: Results, folder: Path) -> list[Path]:
    """Draw every figure that has result files, as PNG and SVG; the paths written."""
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
