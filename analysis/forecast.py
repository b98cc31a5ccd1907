"""What the ladder says of larger models, before one is read: `results/forecast.json`.

The law: a gap, in percent of perplexity, is a straight line in the logarithm of the parameters; so
is the density needed. Least squares on the rungs, with Student's t for what a further model shows
(scatter of the rungs about the line included, so that few rungs and a far size make it wide). The
masks are those of the rungs. What a law of this form cannot see, it cannot warn of: training on
more tokens, another text, another window.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from scipy import stats

from analysis import ladder
from analysis.results import Results
from analysis.rows import only

AHEAD = {"135M": ladder.NEXT["smollm2-135m-instruct"], "1B": 10**9, "7B": 7 * 10**9}
FEWEST = 3  # rungs: two make a line and no interval
LAW = "y = at_1M + slope * log10(parameters / 1e6), least squares over the rungs, a line a mask"
INTERVAL = "prediction interval of one further model, Student's t with rungs - 2 degrees of freedom"
DIFFERS = (
    "The rungs read about a million tokens of encyclopedia articles each; the 135M model read two "
    "trillion of many kinds, perhaps the test articles among them, and the larger ones are any "
    "like it. Its tokens are longer, so a window of 8 holds more text. Only the masks, the test "
    "articles and the retrofit are the same."
)


@dataclass(frozen=True)
class Law:
    """A straight line in log10 of a million parameters.

    Attributes:
        slope: by a factor of ten; ``start``: at one million parameters.
        scatter: of the rungs about the line (root of the residual mean square).
        centre, squares: mean of the rungs' logarithms, and their squares about it.
        rungs: how many; ``confidence``: of the intervals.
        least, most: what a value can be; forecasts are cut off there.
    """

    slope: float
    start: float
    scatter: float
    centre: float
    squares: float
    rungs: int
    confidence: float
    least: float = -math.inf
    most: float = math.inf

    def at(self, parameters: float) -> tuple[float, float, float]:
        """What a further model of that size will show: the value, and the ends of its interval."""
        x = math.log10(parameters / 1e6)
        value = self.start + self.slope * x
        share = 1 + 1 / self.rungs + (x - self.centre) ** 2 / self.squares
        half = self._t * self.scatter * math.sqrt(share)
        value, low, high = (min(max(each, self.least), self.most)
                            for each in (value, value - half, value + half))  # fmt: skip
        return value, low, high

    @property
    def slopes(self) -> tuple[float, float]:
        """Ends of the slope's interval."""
        half = self._t * self.scatter / math.sqrt(self.squares)
        return self.slope - half, self.slope + half

    @property
    def _t(self) -> float:
        return float(stats.t.ppf(0.5 + self.confidence / 2, self.rungs - 2))


def fitted(parameters: Sequence[float], values: Sequence[float], confidence: float,
           limits: tuple[float, float] = (-math.inf, math.inf)) -> Law:  # fmt: skip
    """The law of some rungs.

    Raises:
        ValueError: fewer than :data:`FEWEST`, or all of one size.
    """
    x, y = np.log10(np.asarray(parameters, float) / 1e6), np.asarray(values, float)
    squares = float(((x - x.mean()) ** 2).sum())
    if len(x) < FEWEST or squares == 0:
        raise ValueError(f"a law needs {FEWEST} rungs of different size or more, got {parameters}")
    slope = float(((x - x.mean()) * (y - y.mean())).sum()) / squares
    start = float(y.mean()) - slope * float(x.mean())
    rest = float(((y - start - slope * x) ** 2).sum())
    scatter = math.sqrt(rest / (len(x) - 2))
    return Law(slope, start, scatter, float(x.mean()), squares, len(x), confidence, *limits)


def gap(results: Results, budget: str) -> Law | None:
    """The law of one mask's gap in percent, None where too few rungs were read."""
    rungs = ladder.of(results, "ladder", budget)
    return _law(rungs, "change", results.confidence, (-100.0, math.inf))


def density(results: Results) -> Law | None:
    """The law of the density needed, in percent of the distant pairs."""
    rungs = only(ladder.needed(results), place="ladder")
    return _law(rungs, "density", results.confidence, (0.0, 100.0))


def _law(rows: pd.DataFrame, column: str, confidence: float,
         limits: tuple[float, float]) -> Law | None:  # fmt: skip
    if rows["parameters"].nunique() < FEWEST:
        return None
    return fitted(list(rows["parameters"]), list(100 * rows[column]), confidence, limits)


def content(results: Results) -> dict[str, Any]:
    """What the file says; lists are empty where too few rungs were read."""
    rungs = ladder.of(results, "ladder")
    laws = [entry for entry in _gaps(results, rungs) if entry]
    needed = density(results)
    return {
        "law": LAW, "interval": INTERVAL, "confidence": results.confidence, "differs": DIFFERS,
        "fitted_on": [{"model": model, "parameters": ladder.RUNGS[model]}
                      for model in ladder.RUNGS if model in set(rungs["model"])],
        "read": _dates(results, rungs),
        "gap_percent": laws,
        "density_needed_percent": [] if needed is None else [
            {"gap_at_most_percent": 100 * ladder.SMALL, **_said(needed)}
        ],
    }  # fmt: skip


def _gaps(results: Results, rungs: pd.DataFrame) -> Iterator[dict[str, Any]]:
    for budget, mask in ladder.MASKS.items():
        law, kept = gap(results, budget), only(rungs, budget=budget)["distant_density"]
        if law is not None:
            kept_percent = [round(100 * float(each), 2) for each in (kept.min(), kept.max())]
            known = {"mask": mask, "budget": budget, "distant_pairs_percent": kept_percent}
            yield {**known, **_said(law)}


def _said(law: Law) -> dict[str, Any]:
    """A law and its forecasts."""
    ends = ("value", "low", "high")
    return {
        "at_1M": _round(law.start), "slope": _round(law.slope),
        "slope_interval": [_round(each) for each in law.slopes], "scatter": _round(law.scatter),
        "forecasts": {name: {"parameters": size,
                             **dict(zip(ends, map(_round, law.at(size)), strict=True))}
                      for name, size in AHEAD.items()},
    }  # fmt: skip


def _round(value: float) -> float:
    """Few digits: another machine's last ones must not make another file."""
    return round(value, 3)


def _dates(results: Results, rungs: pd.DataFrame) -> list[str]:
    """Days on which the rungs were read."""
    finished = {str(results.run_of(str(path)).get("finished", "")) for path in rungs["evidence"]}
    return sorted({each[:10] for each in finished if each})


def write(results: Results, path: Path) -> Path:
    """Write the file: always, as it is an output of a stage."""
    text = json.dumps(content(results), indent=1, allow_nan=False) + "\n"
    path.write_text(text, encoding="utf-8")
    return path
