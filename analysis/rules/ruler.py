"""Rules of our own statements about long-context tasks."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pandas as pd

from analysis import ruler
from analysis.results import Results
from analysis.rivals import EQUAL
from analysis.rows import need, only
from analysis.rules.headline import judged
from analysis.rules.registry import Outcome, Verdict, facts, interval, rule
from experiments.settings import Tolerances

FULL, RECIPE = "ruler_adapted", "ruler_recipe"


@rule("ours.answers.{experiment}", refuted="at one length an interval of the answers lost wholly "
      "above same_score")  # fmt: skip
def answers_found(results: Results, limits: Tolerances, experiment: str) -> Outcome:
    """Answers under a mask against the adapted model, judged by the worst of all lengths."""
    own = asked(results, experiment, FULL)
    row, limit = own.sort_values("points_high").iloc[0], limits.same_score
    verdict = worst(judged(-each["points_high"], -each["points_low"], limit)
                    for _, each in own.iterrows())  # fmt: skip
    why = f"{points(own)} (limit -{limit:.0f})"
    return Outcome(verdict, why, **known(row, results), same_setting=True)


@rule("ours.ruler.{control}", refuted="at one length an interval of the difference wholly above "
      "zero: the control finds more")  # fmt: skip
def beyond_control(results: Results, control: str) -> Outcome:
    """Answers under another mask against the recipe's, judged by its best of all lengths."""
    own = asked(results, control, RECIPE)
    row = own.sort_values("points_low").iloc[-1]
    plain = [judged(each["points_low"], each["points_high"], 0.0) for _, each in own.iterrows()]
    weighed = [fair(was, each) for was, (_, each) in zip(plain, own.iterrows(), strict=True)]
    verdict = worst(weighed)
    by_pairs = "" if weighed == plain else "; who finds more keeps more pairs, so that is no win"
    why = (f"{control} against the recipe: {points(own)} (the recipe: "
           f"{', '.join(f'{share:.1%}' for share in own['base_distant_density'])})"
           f"{by_pairs}{one_task(results, row)}")  # fmt: skip
    return Outcome(verdict, why, **known(row, results), same_setting=True)


def fair(verdict: Verdict, row: pd.Series) -> Verdict:
    """The same, but for a win of the side that keeps more pairs."""
    more = row["distant_density"] - row["base_distant_density"]
    won = {Verdict.REPRODUCED: -more, Verdict.NOT_REPRODUCED: more}.get(verdict, 0.0)
    return Verdict.INCONCLUSIVE if won > EQUAL else verdict


def one_task(results: Results, row: pd.Series) -> str:
    """The task in which the two lie furthest apart."""
    same = {name: row[name] for name in ("cell", "against", "length", "budget")}
    tasks = only(ruler.table(results), **same)
    tasks = tasks[tasks["task"] != ruler.EVERY]
    if tasks.empty:
        return ""
    most = tasks.loc[tasks["points"].abs().idxmax()]
    return (f"; most apart in {most['task']}, {most['points']:+.0f} points of {most['questions']} "
            f"questions at {row['length']:,} tokens")  # fmt: skip


def worst(verdicts: Iterable[Verdict]) -> Verdict:
    """Of a statement about every length: refuted by one, borne out by all alone."""
    every = list(verdicts)
    return next((each for each in (Verdict.NOT_REPRODUCED, Verdict.INCONCLUSIVE) if each in every),
                Verdict.REPRODUCED)  # fmt: skip


def asked(results: Results, experiment: str, against: str) -> pd.DataFrame:
    """Rows of all tasks together, a length each."""
    return need(only(ruler.table(results), experiment=f"ruler_{experiment}", against=against,
                     task=ruler.EVERY))  # fmt: skip


def points(rows: pd.DataFrame) -> str:
    """Differences in points, a length each, in words."""
    return "; ".join(
        f"{each['points']:+.1f} points ({each['points_low']:.1f} to {each['points_high']:.1f}) of "
        f"{each['base_found']:.0f}% at {each['length']:,} tokens, {each['seeds']} "
        f"seed{'s' * (each['seeds'] > 1)}, {each['distant_density']:.1%} of the distant pairs"
        for _, each in rows.iterrows()
    )  # fmt: skip


def known(row: pd.Series, results: Results) -> dict[str, Any]:
    """Of one row, as an Outcome takes it."""
    return facts(row, results, "questions") | interval(row, "points", 1)
