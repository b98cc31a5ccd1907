"""Rules of training all weights with Focus: Table 5, other texts, from scratch."""

from __future__ import annotations

from analysis import finetuning, scope
from analysis.finetuning import TEXTS
from analysis.paper import Claim, printed, theirs
from analysis.results import Results
from analysis.rules.architectures import NO_GAIN, no_worse
from analysis.rules.registry import Outcome, Verdict, facts, interval, rule
from analysis.rules.table7 import same_sign
from experiments.settings import Tolerances

GATES = ("soft", "hard")
MODELS = [row["model"] for row in printed("table2")]


def outcome(
    claim: Claim, results: Results, limits: Tolerances, weights: str, texts: str
) -> Outcome:
    """Focus against full attention after as many steps: under the training gate, and under the
    hard mask. The paper does not say which of them it read, so a claim stands where both agree."""
    full = claim.column.replace("focus", "full_attention")
    cost = claim.figure / theirs(claim.id.split(".")[0], full, **claim.keys) - 1
    gate, mask = (finetuning.of(results, weights, "focus", texts, each) for each in GATES)
    told = [no_worse(row, cost, limits, scope.fewer_steps(claim, results, row["cell"]))
            for row in (gate, mask)]  # fmt: skip
    (verdict, why), (other, said) = told
    kept = f"hard top-{mask['top_k']:.0f}, {mask['distant_density']:.0%} of the distant pairs"
    why = f"{texts}, against full attention: training gate {why}; {kept}: {said}"
    return Outcome(verdict if verdict == other else Verdict.INCONCLUSIVE, why, **interval(gate),
                   **facts(gate, results))  # fmt: skip


@rule("table5.{model}.ppl_focus_ft", "domains.{text}.ppl_focus_ft", refuted=NO_GAIN)
def tuned(claim: Claim, results: Results, limits: Tolerances, text: str = "pg19") -> Outcome:
    """Our model on a text of the same kind: on plays for each of the paper's three models."""
    return outcome(claim, results, limits, "fine-tuned", TEXTS[text])


@rule("from_scratch.mistral-7b.ppl_focus", refuted=NO_GAIN)
def from_scratch(claim: Claim, results: Results, limits: Tolerances) -> Outcome:
    """A small model with grouped queries, as Mistral has them."""
    return outcome(claim, results, limits, "from scratch", "articles")


@rule(
    *(f"table5.{model}.ppl_full_attention_ft" for model in MODELS),
    "domains.pg19.ppl_full_attention_ft",
    refuted="after as many steps, an interval above the model before",
)
def gains(claim: Claim, results: Results) -> Outcome:
    """Fine-tuning under full attention, against the model before, where the paper has both."""
    row = finetuning.gain(results, TEXTS["pg19"])
    before = theirs("table2", "ppl_pretrained", model=claim.model)
    few = scope.fewer_steps(claim, results, row["cell"])
    verdict, why = same_sign(row, claim.figure - before, few)
    return Outcome(verdict, f"{row['texts']}: {why}", **interval(row), **facts(row, results))
