"""Rules of our own statements about size: whether a gap grows, and whether the forecast came true.

A forecast is held against a model that was read after it was written. An interval so wide that it
would have held nearly anything forecasts nothing: then a value inside it is no success.
"""

from __future__ import annotations

from typing import Any

import pandas as pd

from analysis import forecast, ladder
from analysis.forecast import Law
from analysis.results import Results
from analysis.rows import need
from analysis.rules.headline import judged
from analysis.rules.registry import Outcome, Verdict, facts, rule
from experiments.settings import Tolerances

ONE = "k1.symmetric.sinkhorn"
MASKS = {"k1": ONE, "k2": "k2.symmetric.sinkhorn", "k3": "k3.multi_probe.sinkhorn"}
PLACE = "next rung"


@rule("ours.ladder.grows", refuted="an interval of the slope wholly below zero: larger models lose "
      "less")  # fmt: skip
def grows(results: Results) -> Outcome:
    """The slope of the law of one group of four."""
    law, rungs = need(forecast.gap(results, ONE)), ladder.of(results, "ladder", ONE)
    low, high = law.slopes
    costs = ", ".join(f"{row['change']:+.1%}" for _, row in rungs.iterrows())
    why = (f"{law.slope:+.2f} points by a factor of ten in size ({low:+.2f} to {high:+.2f}); from "
           f"the smallest rung on: {costs}")  # fmt: skip
    known = facts(rungs.iloc[-1], results) | {"n": law.rungs}
    known |= {"ours": law.slope, "low": low, "high": high}
    return Outcome(judged(-high, -low, 0.0), why, **known, same_setting=True)


@rule("ours.ladder.135m.{what}", refuted="an interval of what the model shows wholly outside the "
      "forecast's interval")  # fmt: skip
def forecasts(results: Results, limits: Tolerances, what: str) -> Outcome:
    """What the next rung shows beside what the ladder said of it, in percent."""
    budget = MASKS.get(what)
    law = need(forecast.gap(results, budget) if budget else forecast.density(results))
    read = need(ladder.of(results, PLACE, budget or ONE))
    seen = read if budget else need(ladder.needed(results).query("place == @PLACE"))
    ends = ("change" if budget else "density", "low", "high")
    value, low, high = (100 * float(seen.iloc[0][end]) for end in ends)
    known = facts(read.iloc[0], results) | {"ours": value, "low": low, "high": high}
    verdict, why = held(law, low, high, 100 * limits.far_worse)
    seen_words = f"{value:.1f}% ({low:.1f} to {high:.1f})"
    return Outcome(verdict, f"{seen_words}; {why}; {differing(read)}", **known, same_setting=True)


def held(law: Law, low: float, high: float, widest: float) -> tuple[Verdict, str]:
    """Whether an interval lies in that of the 135M model's forecast.

    Args:
        low, high: of what was seen; ``widest``: half of the widest forecast that says anything.
    """
    value, least, most = law.at(forecast.AHEAD["135M"])
    why = f"forecast {value:.1f}% ({least:.1f} to {most:.1f}), from {law.rungs} rungs"
    if high < least or low > most:
        return Verdict.NOT_REPRODUCED, f"outside: {why}"
    if low < least or high > most:
        return Verdict.INCONCLUSIVE, f"across an end: {why}"
    if (most - least) / 2 > widest:
        return Verdict.INCONCLUSIVE, f"inside an interval too wide to forecast anything: {why}"
    return Verdict.REPRODUCED, f"inside: {why}"


def differing(read: pd.DataFrame) -> str:
    """What the next rung does not share with the others."""
    first: dict[str, Any] = read.iloc[0].to_dict()
    return (f"same masks, window of {first['window']} and {first['texts']}, but pretrained on far "
            "more text, with longer tokens")  # fmt: skip
