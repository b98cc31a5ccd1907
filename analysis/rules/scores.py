"""Rules of the benchmark scores of other methods and of full fine-tuning: Tables 1 and 10.

The paper's rivals have no trained parameters in Table 1, and neither have ours: a frozen model's
score can change where its mask reaches a question, and nowhere else.
"""

from __future__ import annotations

import pandas as pd

from analysis import finetuning, scope
from analysis.benchmarks import table as scores
from analysis.paper import Claim, printed
from analysis.results import Results
from analysis.rules.benchmarks import TASKS, known
from analysis.rules.registry import Outcome, Verdict, facts, interval, rule
from analysis.rules.rivals import STANDS_FOR
from analysis.rules.table7 import same_sign
from experiments.settings import Tolerances

FINETUNED = "full-attention-finetune"
ANSWERED = {name: f"answers_{own}" for name, own in {**STANDS_FOR, FINETUNED: "finetuned"}.items()}


def drop(claim: Claim, method: str) -> float:
    """The paper's points between a method's score and the pretrained model's."""
    rows = {row["method"]: row for row in printed(claim.id.split(".")[0])}
    return float(rows[method][claim.column]) - float(rows["pretrained"][claim.column])


def judged(row: pd.Series, theirs: float, limit: float) -> tuple[str, str]:
    """Points beside the paper's: a change there and here, or none."""
    low, high = row["low"], row["high"]
    stays = -limit <= low and high <= limit
    if abs(theirs) <= limit:
        if stays:
            return Verdict.DIRECTION, "it stays here, too"
        beyond = low > limit or high < -limit
        return ((Verdict.NOT_REPRODUCED, "it changes here") if beyond
                else (Verdict.INCONCLUSIVE, "the interval holds the limit"))  # fmt: skip
    if stays:
        return Verdict.NOT_REPRODUCED, "it stays here"
    if low <= 0 <= high:
        return Verdict.INCONCLUSIVE, "the interval holds zero"
    same = (low > 0) == (theirs > 0)
    return ((Verdict.DIRECTION, "the same direction") if same
            else (Verdict.NOT_REPRODUCED, "the other direction"))  # fmt: skip


@rule(
    *(f"table1.{method}.{task}" for method in ANSWERED for task in TASKS),
    *(f"table10.{method}.{task}" for method in ANSWERED for task in TASKS),
    refuted="where the paper's score changes by more than the limit same_score, an interval within "
    "that limit or on the other side of zero; where it does not, one wholly beyond the limit",
)
def rival_score(claim: Claim, results: Results, limits: Tolerances) -> Outcome | None:
    """A benchmark under a rival, or after fine-tuning, beside the pretrained model's."""
    method, frame = claim.id.split(".")[1], scores(results)
    if frame.empty or method not in ANSWERED:
        return None
    own = frame[(frame["experiment"] == ANSWERED[method]) & (frame["texts"] == TASKS[claim.column])]
    if own.empty:
        return None
    row, theirs = own.iloc[0], drop(claim, method)
    verdict, said = judged(row, theirs, limits.same_score)
    trained = method == FINETUNED
    if trained and verdict == Verdict.NOT_REPRODUCED:
        few = scope.fewer_steps(claim, results.cells["finetuned-textsplays"])
        verdict, said = (Verdict.INCONCLUSIVE, f"{said}, after far fewer steps") if few else (
            verdict, said)  # fmt: skip
    masked, limit = not trained and method != "performer", limits.same_score
    few_exposed = masked and row["exposed_questions_percent"] <= limit
    if verdict == Verdict.DIRECTION and few_exposed:
        verdict = Verdict.ARITHMETIC  # a mask reaches hardly a question
    share = f"; {row['exposed_questions_percent']:.0f}% of the questions are longer than its window"
    reach = share if masked else ""
    why = (f"{row['points']:+.1f} points ({row['low']:+.1f} to {row['high']:+.1f}) against the "
           f"pretrained model, the paper {theirs:+.1f}: {said}{reach}")  # fmt: skip
    ours = {"ours": row["points"], "low": row["low"], "high": row["high"]}
    return Outcome(verdict, why, **ours, **known(row, results))


@rule("table1.full-attention-finetune.ppl", refuted="after as many steps, an interval above the "
      "model before")  # fmt: skip
def finetuned(claim: Claim, results: Results) -> Outcome | None:
    """Fine-tuning under full attention, against the model before."""
    row = finetuning.of(results, "fine-tuned", "full", "plays", "full")
    if row is None:
        return None
    papers = {each["method"]: each["ppl"] for each in printed("table1")}
    few = scope.fewer_steps(claim, results.cells[row["cell"]])
    verdict, why = same_sign(row, papers[FINETUNED] - papers["pretrained"], few)
    return Outcome(verdict, f"{row['texts']}: {why}", **interval(row), **facts(row, results))
