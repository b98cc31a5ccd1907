"""Rules of long-context tasks: answers under a mask against full attention, and against the
recipe's. Questions of one task are alike, so a verdict needs the interval over questions and that
over tasks to agree.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import pandas as pd

from analysis import answers
from analysis.results import Results
from analysis.rows import need, only
from analysis.rules.registry import Outcome, Verdict, agreed, fair, judged, rule
from analysis.words import plural
from experiments import statistics
from experiments.settings import Tolerances

FULL, RECIPE = "ruler_adapted", "ruler_recipe"


@rule("ours.answers.{experiment}", refuted="at one length an interval of the answers lost wholly "
      "above same_score")  # fmt: skip
def answers_found(results: Results, limits: Tolerances, experiment: str) -> Outcome:
    """Answers under a mask against the adapted model, judged by the worst of all lengths."""
    own = asked(results, experiment, FULL)
    row, limit = own.sort_values("points").iloc[0], limits.same_score
    verdict = worst(both_ways(results, each, lambda low, high: judged(-high, -low, limit))
                    for _, each in own.iterrows())  # fmt: skip
    why = f"{by_length(own)} (limit -{limit:.0f}){over_tasks(results, row)}"
    return Outcome.of(verdict, why, row, results, "points", "questions", same_setting=True)


@rule("ours.ruler.{control}", refuted="at one length an interval of the difference wholly above "
      "zero: the control finds more")  # fmt: skip
def beyond_control(results: Results, control: str) -> Outcome:
    """Answers under another mask against the recipe's, judged by its best of all lengths."""
    own = asked(results, control, RECIPE)
    row = own.sort_values("points_low").iloc[-1]
    plain = [both_ways(results, each, lambda low, high: judged(low, high, 0.0))
             for _, each in own.iterrows()]  # fmt: skip
    more = own["base_distant_density"] - own["distant_density"]
    weighed = [fair(was, each) for was, each in zip(plain, more, strict=True)]
    verdict = worst(weighed)
    by_pairs = "" if weighed == plain else "; who finds more keeps more pairs, so that is no win"
    why = (f"{control} against the recipe: {by_length(own)} (the recipe: "
           f"{', '.join(f'{share:.1%}' for share in own['base_distant_density'])})"
           f"{by_pairs}{one_task(results, row)}{over_tasks(results, row)}")  # fmt: skip
    return Outcome.of(verdict, why, row, results, "points", "questions", same_setting=True)


def by_task(results: Results, row: pd.Series) -> pd.DataFrame:
    """The row's rows of a task each."""
    same = {name: row[name] for name in ("cell", "against", "length", "budget")}
    tasks = only(answers.tasks(results), **same)
    return tasks[tasks["task"] != answers.ALL_TASKS]


def over_tasks(results: Results, row: pd.Series) -> str:
    """Words with the interval over tasks: questions of one task are alike."""
    found = interval_over_tasks(results, row)
    if found is None:
        return ""
    return (f"; intervals are over questions: over the {found.documents} tasks {found.low:.1f} to "
            f"{found.high:.1f} at {row['length']:,} tokens")  # fmt: skip


def interval_over_tasks(results: Results, row: pd.Series) -> statistics.Interval | None:
    """The difference in points with an interval over tasks, None where there is one task."""
    tasks = by_task(results, row)
    return None if len(tasks) < 2 else statistics.mean(tasks["points"], results.confidence)


def both_ways(results: Results, row: pd.Series,
              judge: Callable[[float, float], Verdict]) -> Verdict:  # fmt: skip
    """The verdict that the interval over questions and that over tasks agree on."""
    ends, tasks = [(row["points_low"], row["points_high"])], interval_over_tasks(results, row)
    if tasks is not None:
        ends.append((tasks.low, tasks.high))
    return agreed(judge(low, high) for low, high in ends)


def one_task(results: Results, row: pd.Series) -> str:
    """The task in which the two lie furthest apart."""
    tasks = by_task(results, row)
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
    return need(only(answers.tasks(results), experiment=f"ruler_{experiment}", against=against,
                     task=answers.ALL_TASKS))  # fmt: skip


def by_length(rows: pd.DataFrame) -> str:
    """Differences in points, a length each, in words."""
    return "; ".join(
        f"{each['points']:+.1f} points ({each['points_low']:.1f} to {each['points_high']:.1f}) of "
        f"{each['base_found']:.0f}% at {each['length']:,} tokens, "
        f"{plural(each['seeds'], 'seed')}, {each['distant_density']:.1%} of the distant pairs"
        for _, each in rows.iterrows()
    )  # fmt: skip
