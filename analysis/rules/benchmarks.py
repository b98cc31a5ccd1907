"""Rules of benchmark scores: whether they stay, and whether a mask reached them at all."""

from __future__ import annotations

from typing import Any

import pandas as pd

from analysis.benchmarks import EVERY, table
from analysis.cells import WINDOW
from analysis.paper import Claim
from analysis.results import Results
from analysis.rows import need, only, row_of
from analysis.rules.headline import judged
from analysis.rules.registry import Outcome, Verdict, facts, interval, points, rule, told
from experiments.settings import Tolerances

# The paper's name of a benchmark, and lm-eval's.
TASKS = {"hellaswag": "hellaswag", "arc_easy": "arc_easy", "piqa": "piqa",
         "lambada": "lambada_openai"}  # fmt: skip
FOCUS = ("table1.focus", "table3.focus-r16", "table10.focus")  # the same row in three tables
NAMES = {**TASKS, "truthfulqa_mc1": "truthfulqa_mc1"}


def known(row: pd.Series, results: Results) -> dict[str, Any]:
    """Evidence, command, n and scale of a row."""
    seeds = ", ".join(map(str, results.run_of(row["evidence"]).get("seeds") or [0]))
    asked = f"{int(row['questions'])} questions, {int(row['shots'])} shots"
    scale = f"{results.scale}; {results.cells[row['cell']].model}; {asked}; seed {seeds}"
    return facts(row, results, "questions", scale)


def zero_shot(results: Results) -> pd.DataFrame:
    """Rows under masks with the paper's window, of prompts without worked examples."""
    own = only(table(results), shots=0, window=WINDOW)
    return own[own["budget"] != "own"]


@rule(
    *(f"{row}.{task}" for row in FOCUS for task in TASKS),
    *(f"table4.focus-k2.{task}" for task in NAMES),
    refuted="an interval of the difference to the pretrained model's score below zero",
)
def unchanged(claim: Claim, results: Results, limits: Tolerances) -> Outcome:
    """The paper's setup on our model: scores with and without the mask, question by question."""
    row = need(row_of(zero_shot(results), role="paper", texts=NAMES[claim.column]))
    return kept(row, results, limits)


def kept(row: pd.Series, results: Results, limits: Tolerances) -> Outcome:
    """Whether a score stays under a mask: by arithmetic, where it reaches too few questions for
    more points than same_score to change."""
    verdict = Verdict.ARITHMETIC
    if row["exposed_questions_percent"] > limits.same_score:
        verdict = told(not row["changed_percent"], row["high"] < 0)
    why = (f"{row['score']:.0f}% under the mask, {row['base_score']:.0f}% without, difference "
           f"{points(row)}; {row['changed_percent']:.0f}% of the answers changed. The mask"
           f"{causal(row)} reaches {row['exposed_questions_percent']:.0f}% of the questions and "
           f"{row['exposed_pairs_percent']:.1f}% of their pairs")  # fmt: skip
    return Outcome(verdict, why, **known(row, results))


def causal(row: pd.Series) -> str:
    """Words where the paper's groups have our causal balance, since the paper's own would leak."""
    return ", under causal balance," if str(row["budget"]).endswith(".causal") else ""


@rule("ours.many_shot.{role}", refuted="an interval of the points lost on the four benchmarks "
      "together wholly above same_score")  # fmt: skip
def after_examples(results: Results, limits: Tolerances, role: str) -> Outcome:
    """Scores under a mask that worked examples put within its reach, question by question."""
    frame, limit = table(results), limits.same_score
    row = need(row_of(frame[frame["shots"] > 0], role=role, texts=EVERY))
    why = (f"{points(row)} of {row['base_score']:.0f}% against {row['against']} (limit "
           f"-{limit:.0f}); the mask{causal(row)} reaches "
           f"{row['exposed_questions_percent']:.0f}% of the questions and "
           f"{row['exposed_pairs_percent']:.0f}% of their pairs")  # fmt: skip
    verdict = judged(-row["high"], -row["low"], limit)
    return Outcome(verdict, why, **interval(row, "points", 1), **known(row, results),
                   same_setting=True)  # fmt: skip


@rule("audit.4", refuted="most zero-shot prompts are longer than the window and the sinks")
def unexposed(results: Results) -> Outcome:
    """How many zero-shot questions of the paper's four benchmarks a mask can reach."""
    own = need(only(zero_shot(results), texts=list(TASKS.values())).drop_duplicates("texts"))
    reached = float((own["exposed_questions_percent"] * own["questions"]).sum()
                    / own["questions"].sum())  # fmt: skip
    verdict = Verdict.DIRECTION if reached < 50 else Verdict.NOT_REPRODUCED
    why = "Questions with a pair beyond the window of 128, and such pairs: " + "; ".join(
        f"{row['texts']} {row['exposed_questions_percent']:.0f}%, "
        f"{row['exposed_pairs_percent']:.1f}%" for _, row in own.iterrows()
    )  # fmt: skip
    first = own.iloc[0]
    every = known(first, results) | {"n": int(own["questions"].sum())}
    return Outcome(verdict, why, ours=reached, **every)
