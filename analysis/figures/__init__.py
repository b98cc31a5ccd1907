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


DRAWN: dict[str, Callable[[Results], Figure]] = {
    "quality": quality.draw, "kinds": quality.kinds, "rivals": quality.beside_rivals,
    "timed": quality.by_time, "searches": equal.searches, "architectures": models.by_type,
    "ladder": scale.by_size, "finetuning": models.finetuned, "lengths": scale.by_length,
    "benchmarks": answers.scores, "chat": answers.distances, "positions": scale.by_position,
    "ruler": answers.tasks, "ablations": ablations.draw, "further": ablations.further,
    "dominance": groups.dominance, "evenness": groups.uneven, "contents": groups.purity,
    "speech": groups.speech, "information": groups.told, "mask": pairs.picture,
    "training": models.training, "copying": answers.copies, "induction": pairs.induction,
    "leak": groups.leak, "speed": speed.draw, "decode": speed.decode, "plan": speed.plan,
    "whole": speed.whole,
}  # fmt: skip


def shown() -> dict[str, Shown]:
    """Every figure by name, in the order of `captions.md`."""
    text = Path(__file__).with_name("captions.md").read_text(encoding="utf-8")
    found = {}
    for part in text.split("\n## ")[1:]:
        head, caption = part.strip().split("\n")
        name, title = head.split(": ", 1)
        found[name] = Shown(DRAWN[name], title, caption)
    return found


FIGURES = shown()


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
