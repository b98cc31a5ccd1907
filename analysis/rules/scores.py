"""Rules of the benchmark scores of other methods and of full fine-tuning: Tables 1 and 10; GSM8K.

The paper's rivals have no trained parameters in Table 1, and neither have ours: a frozen model's
score can change where its mask reaches a question, and nowhere else.
"""

from __future__ import annotations

from analysis import finetuning, scope
from analysis.benchmarks import table as scores
from analysis.paper import Claim, theirs
from analysis.results import Results
from analysis.rows import need, only, row_of
from analysis.rules.ablations import beside
from analysis.rules.benchmarks import TASKS, causal, known
from analysis.rules.registry import Outcome, Verdict, facts, interval, points, rule
from analysis.rules.rivals import STANDS_FOR
from analysis.rules.table7 import same_sign
from experiments.settings import Tolerances

FINETUNED = "full-attention-finetune"
STAYS = ("it stays here, too", "it changes here", "it stays here")  # in place of SMALL
ANSWERED = {name: f"answers_{own}" for name, own in {**STANDS_FOR, FINETUNED: "finetuned"}.items()}


def drop(claim: Claim) -> float:
    """The paper's difference between a method's figure and the pretrained model's."""
    return claim.figure - theirs(claim.id.split(".")[0], claim.column, method="pretrained")


@rule(
    *(f"table1.{method}.{task}" for method in ANSWERED for task in TASKS),
    *(f"table10.{method}.{task}" for method in ANSWERED for task in TASKS),
    refuted="where the paper's score changes by more than the limit same_score, an interval within "
    "that limit or on the other side of zero, if the mask reaches the questions; where it does "
    "not, one wholly beyond the limit",
)
def rival_score(claim: Claim, results: Results, limits: Tolerances) -> Outcome:
    """A benchmark under a rival, or after fine-tuning, beside the pretrained model's."""
    method = claim.id.split(".")[1]
    row = need(row_of(scores(results), experiment=ANSWERED[method], texts=TASKS[claim.column]))
    more, limit, trained = drop(claim), limits.same_score, method == FINETUNED
    few = trained and scope.fewer_steps(claim, results, "finetuned-textsplays")
    verdict, said = beside(row, more, limit, limits.much_less, few, STAYS)
    masked = not trained and method != "performer"
    if masked and row["exposed_questions_percent"] <= limit:  # a mask reaches hardly a question
        verdict = {Verdict.DIRECTION: Verdict.ARITHMETIC,
                   Verdict.NOT_REPRODUCED: Verdict.INCONCLUSIVE}.get(verdict, verdict)  # fmt: skip
    share = f"; {row['exposed_questions_percent']:.0f}% of the questions are longer than its window"
    reach = f"{share}{narrower(claim, results, method)}" if masked else ""
    why = (f"{points(row)} against the pretrained model, the paper {more:+.1f}: "
           f"{said}{reach}")  # fmt: skip
    return Outcome(verdict, why, **interval(row, "points", 1), **known(row, results))


def narrower(claim: Claim, results: Results, method: str) -> str:
    """The score under the narrowest window that was read, of a method that is a window alone: the
    paper names none."""
    own = only(scores(results), texts=TASKS[claim.column], shots=0)
    own = own[own["experiment"] == "answers_window"].sort_values("window")
    if method != "longformer" or own.empty:
        return ""
    row = own.iloc[0]
    return f", and the paper names none; of {int(row['window'])} tokens {points(row)}"


@rule("gsm8k.mistral-7b.focus.accuracy", refuted="an interval wholly beyond same_score, where the "
      "full model answers enough to lose that much, after as many steps")  # fmt: skip
def sums(claim: Claim, results: Results, limits: Tolerances) -> Outcome:
    """Answers generated under the paper's mask, beside the pretrained model's."""
    row = need(row_of(scores(results), experiment="sums_paper", texts="gsm8k"))
    more = claim.figure - theirs("gsm8k", "accuracy", method="full-attention")
    few = scope.fewer_steps(claim, results, row["cell"])
    verdict, said = beside(row, more, limits.same_score, limits.much_less, few, STAYS)
    if verdict == Verdict.DIRECTION and row["base_score"] <= limits.same_score:
        verdict, said = Verdict.INCONCLUSIVE, "nothing that a mask could lose"
    why = (f"{points(row)} against the pretrained model's {row['base_score']:.0f}%"
           f"{causal(row) or ','} the paper {more:+.1f}: {said}")  # fmt: skip
    return Outcome(verdict, why, **interval(row, "points", 1), **known(row, results))


@rule("table1.full-attention-finetune.ppl", refuted="after as many steps, an interval above the "
      "model before")  # fmt: skip
def finetuned(claim: Claim, results: Results) -> Outcome:
    """Fine-tuning under full attention, against the model before."""
    row = finetuning.gain(results, "plays")
    few = scope.fewer_steps(claim, results, row["cell"])
    verdict, why = same_sign(row, drop(claim), few)
    return Outcome(verdict, f"{row['texts']}: {why}", **interval(row), **facts(row, results))
