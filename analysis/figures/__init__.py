"""Figures from result files, one module a figure. Only what has result files is drawn."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from matplotlib.figure import Figure

from analysis.figures import (
    copying,
    decode,
    leak,
    pareto,
    search,
    speed,
    style,
    topk,
    transfer,
    whole,
)
from analysis.results import Results

FIGURES: dict[str, Callable[[Results], Figure | None]] = {
    "topk": topk.draw,
    "speed": speed.draw,
    "leak": leak.draw,
    "pareto": pareto.draw,
    "transfer": transfer.draw,
    "copying": copying.draw,
    "search": search.draw,
    "decode": decode.draw,
    "whole": whole.draw,
}
CAPTIONS = {
    "topk": topk.CAPTION,
    "speed": speed.CAPTION,
    "leak": leak.CAPTION,
    "pareto": pareto.CAPTION,
    "transfer": transfer.CAPTION,
    "copying": copying.CAPTION,
    "search": search.CAPTION,
    "decode": decode.CAPTION,
    "whole": whole.CAPTION,
}


def write(results: Results, folder: Path) -> list[Path]:
    """Draw every figure that has result files to `<name>.png` and `<name>.svg`; the paths
    written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for name, draw in FIGURES.items():
        figure = draw(results)
        paths = [folder / f"{name}.{suffix}" for suffix in ("png", "svg")]
        if figure is None:  # a figure of an older run must not outlive its result files
            for path in paths:
                path.unlink(missing_ok=True)
            continue
        written += style.save(figure, paths)
    return written
