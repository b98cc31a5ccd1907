"""Rules of training all weights with Focus: Table 5, other texts, from scratch."""

from __future__ import annotations

import pandas as pd

from analysis import finetuning, scope
from analysis.finetuning import TEXTS
from analysis.paper import Claim, printed, theirs
from analysis.results import Results
from analysis.rules.architectures import NO_GAIN, no_worse
from analysis.rules.registry import Outcome, facts, interval, rule
from analysis.rules.table7 import same_sign
from experiments.settings import Tolerances

MODELS = [row["model"] for row in printed("table2")]


def outcome(claim: Claim, results: Results, limits: Tolerances, row: pd.Series) -> Outcome:
    """Focus against full attention, under the training gate, after as many steps."""
    full = claim.column.replace("focus", "full_attention")
    cost = claim.figure / theirs(claim.id.split(".")[0], full, **claim.keys) - 1
    few = scope.fewer_steps(claim, results, row["cell"])
    verdict, why = no_worse(row, cost, limits.same_ppl, few)
    why = f"training gate against full attention, {row['texts']}: {why}"
    return Outcome(verdict, why, **interval(row), **facts(row, results))


@rule("table5.{model}.ppl_focus_ft", "domains.{text}.ppl_focus_ft", refuted=NO_GAIN)
def tuned(claim: Claim, results: Results, limits: Tolerances, text: str = "pg19") -> Outcome:
    """Our model on a text of the same kind: on plays for each of the paper's three models."""
    row = finetuning.of(results, "fine-tuned", "focus", TEXTS[text], "soft")
    return outcome(claim, results, limits, row)


@rule("from_scratch.mistral-7b.ppl_focus", refuted=NO_GAIN)
def from_scratch(claim: Claim, results: Results, limits: Tolerances) -> Outcome:
    """A small model with grouped queries, as Mistral has them."""
    row = finetuning.of(results, "from scratch", "focus", "articles", "soft")
    return outcome(claim, results, limits, row)


@rule(
    *(f"table5.{model}.ppl_full_attention_ft" for model in MODELS),
    "domains.pg19.ppl_full_attention_ft",
    refuted="after as many steps, an interval above the model before",
)
def gains(claim: Claim, results: Results) -> Outcome:
    """Fine-tuning under full attention, against the model before, where the paper has both."""
    row = finetuning.of(results, "fine-tuned", "full", TEXTS["pg19"], "full")
    before = theirs("table2", "ppl_pretrained", model=claim.model)
    few = scope.fewer_steps(claim, results, row["cell"])
    verdict, why = same_sign(row, claim.figure - before, few)
    return Outcome(verdict, f"{row['texts']}: {why}", **interval(row), **facts(row, results))
