"""A ladder of models of one type: what a mask costs, and how dense it must be, against size; and
what that says of larger models before one is read, `results/forecast.json`.

Four models of growing width, trained here on the same tokens in the same order, then given the same
routers; and the next rung, which others trained. The law: a gap, in percent of perplexity, is a
straight line in the logarithm of the parameters; so is the density needed. Least squares on the
rungs, with Student's t for what a further model shows (scatter of the rungs about the line
included, so that few rungs and a far size make it wide). The masks are those of the rungs. What a
law of this form cannot see, it cannot warn of: more tokens, another text, another window.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from scipy import stats

from analysis.comparisons import quality
from analysis.results import Results
from analysis.rows import only, tabled

# Parameters by model, embeddings counted once: of the rungs that a law is fitted on, and the next.
RUNGS = {"small-llama-1m": 787_296, "small-llama-2m": 2_361_024, "small-llama-5m": 4_721_184,
         "small-llama-8m": 7_867_776}  # fmt: skip
NEXT = {"smollm2-135m-instruct": 134_515_008}
PARAMETERS = RUNGS | NEXT
# Masks by their name in result files, the sparsest first; a window of near tokens alone is "own".
WINDOW = "own"
MASKS = {
    WINDOW: "near tokens alone",
    "k1.symmetric.sinkhorn": "1 of 4 groups",
    "k2.multi_probe.sinkhorn": "2 of 4 groups, keys in one",
    "k3.multi_probe.sinkhorn": "3 of 4 groups, keys in one",
    "k2.symmetric.sinkhorn": "2 of 4 groups",
}
PLACES = {
    "ladder_paper": "ladder", "ladder_window": "ladder",
    "next_rung_paper": "next rung", "next_rung_window": "next rung",
    "paper": "another window and text", "paper_books": "another window and text",
}  # fmt: skip
SMALL = 0.02  # a small gap: same_ppl of params.yaml
COLUMNS = ["place", "model", "parameters", "mask", "window", "budget", "distant_density", "change",
           "low", "high", "ppl", "base_ppl", "documents", "seeds", "texts", "context", "cell",
           "evidence"]  # fmt: skip
AHEAD = {"135M": NEXT["smollm2-135m-instruct"], "1B": 10**9, "7B": 7 * 10**9}
FEWEST = 3  # rungs: two make a line and no interval
LAW = "y = at_1M + slope * log10(parameters / 1e6), least squares over the rungs, a line a mask"
INTERVAL = "prediction interval of one further model, Student's t with rungs - 2 degrees of freedom"
DIFFERS = (
    "The rungs read about a million tokens of encyclopedia articles each; the 135M model read two "
    "trillion of many kinds, perhaps the test articles among them, and the larger ones are any "
    "like it. Its tokens are longer, so a window of 8 holds more text. Only the masks, the test "
    "articles and the retrofit are the same."
)


@cache
def table(results: Results) -> pd.DataFrame:
    """A row a model and mask: change of the perplexity against the same model under full attention,
    with its interval over documents, and the share of distant pairs kept; ``place``: a rung of the
    ladder, the next one, or that model under another window on other texts."""
    own = only(quality(results), experiment=PLACES, model=PARAMETERS, condition="hard",
               budget=MASKS, base_role=["small", "pretrained"])  # fmt: skip
    known = own.assign(
        place=own["experiment"].map(PLACES), parameters=own["model"].map(PARAMETERS),
        mask=own["budget"].map(MASKS), window=own["window"].astype(int),
    )  # fmt: skip
    return known[COLUMNS].sort_values(
        ["place", "parameters", "texts", "distant_density"], kind="stable", ignore_index=True
    )


def of(results: Results, place: str, budget: str | None = None) -> pd.DataFrame:
    """Rows of one place, and of one mask where it is named, by size."""
    own = only(table(results), place=place)
    return own if budget is None else only(own, budget=budget)


@tabled("place", "model", "parameters", *("density", "low", "high"))
def needed(results: Results) -> Iterator[dict[str, Any]]:
    """A row a model of the ladder and the next rung: the least share of the distant pairs at which
    the gap is :data:`SMALL`, read off between neighbouring masks, and off the ends of their
    intervals. Empty where a model's window alone was not read."""
    for (place, model), own in table(results).groupby(["place", "model"], sort=False):
        if WINDOW in set(own["budget"]):
            least = {end: share(own, column) for end, column in
                     (("density", "change"), ("low", "low"), ("high", "high"))}  # fmt: skip
            yield {"place": place, "model": model, "parameters": PARAMETERS[str(model)], **least}


def share(rows: pd.DataFrame, column: str) -> float:
    """The share of distant pairs from which on a gap stays at :data:`SMALL` or less.

    Args:
        rows: masks of one model; ``column``: the gap that is read. With every pair it is zero.
    """
    known = sorted(zip(rows["distant_density"], rows[column], strict=True))
    points = [*known, (1.0, 0.0)]
    for (sparse, above), (dense, below) in reversed(list(pairwise(points))):
        if above > SMALL:
            return float(dense - (SMALL - below) / (above - below) * (dense - sparse))
    return 0.0


@dataclass(frozen=True)
class Law:
    """A straight line in log10 of a million parameters.

    Attributes:
        slope: by a factor of ten; ``start``: at one million parameters.
        scatter: of the rungs about the line (root of the residual mean square).
        sizes: of the rungs, on that scale; ``confidence``: of the intervals.
        limits: what a value can be; forecasts are cut off there.
    """

    slope: float
    start: float
    scatter: float
    sizes: np.ndarray
    confidence: float
    limits: tuple[float, float]

    def at(self, parameters: float) -> tuple[float, float, float]:
        """What a further model of that size will show: the value, and the ends of its interval."""
        x = math.log10(parameters / 1e6)
        share = 1 + 1 / len(self.sizes) + (x - self.sizes.mean()) ** 2 / self._squares
        ends = self._t * self.scatter * math.sqrt(share) * np.array([0, -1, 1])
        value, low, high = np.clip(self.start + self.slope * x + ends, *self.limits)
        return float(value), float(low), float(high)

    @property
    def slopes(self) -> tuple[float, float]:
        """Ends of the slope's interval."""
        half = self._t * self.scatter / math.sqrt(self._squares)
        return self.slope - half, self.slope + half

    @property
    def _squares(self) -> float:
        return float(((self.sizes - self.sizes.mean()) ** 2).sum())

    @property
    def _t(self) -> float:
        return float(stats.t.ppf(0.5 + self.confidence / 2, len(self.sizes) - 2))


def fitted(parameters: Sequence[float], values: Sequence[float], confidence: float,
           limits: tuple[float, float] = (-math.inf, math.inf)) -> Law:  # fmt: skip
    """The law of some rungs.

    Raises:
        ValueError: fewer than :data:`FEWEST` sizes.
    """
    if len(set(parameters)) < FEWEST:
        raise ValueError(f"a law needs {FEWEST} rungs of different size or more, got {parameters}")
    sizes = np.log10(np.asarray(parameters, float) / 1e6)
    fit = stats.linregress(sizes, values)
    rest = float(((values - fit.intercept - fit.slope * sizes) ** 2).sum())
    scatter = math.sqrt(rest / (len(sizes) - 2))
    return Law(float(fit.slope), float(fit.intercept), scatter, sizes, confidence, limits)


def gap(results: Results, budget: str) -> Law | None:
    """The law of one mask's gap in percent, None where too few rungs were read."""
    return _law(of(results, "ladder", budget), "change", results.confidence, (-100.0, math.inf))


def density(results: Results) -> Law | None:
    """The law of the density needed, in percent of the distant pairs."""
    own = only(needed(results), place="ladder")
    return _law(own, "density", results.confidence, (0.0, 100.0))


def _law(rows: pd.DataFrame, column: str, confidence: float,
         limits: tuple[float, float]) -> Law | None:  # fmt: skip
    if rows["parameters"].nunique() < FEWEST:
        return None
    return fitted(list(rows["parameters"]), list(100 * rows[column]), confidence, limits)


def content(results: Results) -> dict[str, Any]:
    """What the file says; lists are empty where too few rungs were read."""
    rungs = of(results, "ladder")
    law = density(results)
    finished = {str(results.run_of(str(path)).get("finished", "")) for path in rungs["evidence"]}
    return {
        "law": LAW, "interval": INTERVAL, "confidence": results.confidence, "differs": DIFFERS,
        "fitted_on": [{"model": model, "parameters": RUNGS[model]}
                      for model in RUNGS if model in set(rungs["model"])],
        "read": sorted({each[:10] for each in finished if each}),
        "gap_percent": list(_gaps(results, rungs)),
        "density_needed_percent": [] if law is None else [
            {"gap_at_most_percent": 100 * SMALL, **_said(law)}
        ],
    }  # fmt: skip


def _gaps(results: Results, rungs: pd.DataFrame) -> Iterator[dict[str, Any]]:
    for budget, mask in MASKS.items():
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


def write(results: Results, path: Path) -> Path:
    """Write the file: always, as it is an output of a stage."""
    text = json.dumps(content(results), indent=1, allow_nan=False) + "\n"
    path.write_text(text, encoding="utf-8")
    return path
