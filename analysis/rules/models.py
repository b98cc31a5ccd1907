"""Rules of other models, texts and lengths: the five attention types (Table 2), all weights trained
(Table 5, other texts, from scratch), longer texts than routers were trained on (Section 4).

Attention types are judged on the paper's models where they were read, else on small ones that were
trained here. Perplexities of the paper's own models are not judged: theirs need their weights. What
is judged is what the method changes. The paper's GPT-2 rows are its training gate (Table 7 has 41.3
under the hard mask of two groups where Table 2 has 34.2), its Mistral row is the hard mask.
"""

from __future__ import annotations

import pandas as pd

from analysis import models, scope
from analysis.models import TYPES
from analysis.paper import Claim, printed, theirs
from analysis.results import Results
from analysis.rivals import EQUAL
from analysis.rows import need, only
from analysis.rules.ablations import beside_paper, pretrained
from analysis.rules.answers import TASKS, kept, scored, zero_shot
from analysis.rules.registry import Outcome, Verdict, agreed, changed, facts, points, rule, told
from analysis.rules.table7 import (
    gate_of,
    gate_of_all_steps,
    in_its_setting,
    of_all_steps,
    paper_way,
    same_sign,
)
from experiments.settings import Tolerances

MODELS = [row["model"] for row in printed("table2")]
NO_GAIN = ("after as many steps, where the paper gains more than the limit same_ppl, an interval "
           "above zero or wholly within the limit; elsewhere one above the paper's cost, which "
           "counts as the limit at least")  # fmt: skip


def no_worse(row: pd.Series, theirs: float, claim: Claim, results: Results,
             limits: Tolerances) -> tuple[Verdict, str]:  # fmt: skip
    """A change of perplexity beside the paper's: a gain, where the paper gains more than the limit;
    else a cost no greater than the paper's (both relative), or than the limit."""
    few = scope.fewer_steps(claim, results, row["cell"])
    said, limit = f"{changed(row)}; the paper {theirs:+.1%}", limits.same_ppl
    if theirs < -limit:
        verdict, why = beside_paper(row, theirs, limits, few)
        return verdict, f"{why}: {said}"
    most = max(theirs, limit)
    if row["high"] <= most:
        return Verdict.DIRECTION, f"no greater cost here: {said}"
    if row["low"] > most and not few:
        return Verdict.NOT_REPRODUCED, f"a greater cost: {said}"
    return Verdict.INCONCLUSIVE, (
        f"{'more than' if row['low'] > most else 'an interval around'} {most:+.1%}"
        f"{', after far fewer steps' if few else ''}: {said}"
    )


def near_only(results: Results, model: str, most: float) -> str:
    """Words unless a window alone costs a model more than a cost, the interval whole: else that a
    mask costs no more says nothing. Empty, too, where nobody looked."""
    row = models.worth(results, model)
    if row is None or row["low"] > most:
        return ""
    return f"but a window alone costs {row['model']} {changed(row)}: not surely more than that"


def spared(mask: pd.Series, claim: Claim) -> str:
    """Words where a mask keeps more pairs than the paper prints for two of four groups of the
    claim's model, or of any: then that it costs no more says nothing."""
    rows = printed("table7", k=2, model=claim.model) or printed("table7", k=2)
    most = max(row["pairs_retained"] for row in rows) / 100
    share = mask["distant_density"]
    if share <= most + EQUAL:
        return ""
    return f"but it keeps {share:.0%} of the distant pairs, the paper's {most:.0%} at most"


def costly(row: pd.Series | None, most: float) -> str:
    """Words where the model of as many steps as the paper's may lose more than a cost."""
    if row is None or row["high"] <= most:
        return ""
    return f"but {named(row)}, which reads further, costs {changed(row)}"


def weighed(found: tuple[Verdict, str], doubt: str) -> tuple[Verdict, str]:
    """The same, but open where it is in favour and something speaks against that."""
    verdict, why = found
    if doubt and verdict == Verdict.DIRECTION:
        return Verdict.INCONCLUSIVE, f"{why}; {doubt}"
    return found


def named(row: pd.Series) -> str:
    """A row's model, with its attention type."""
    return f"{row['model']} ({models.attention_of(row['model'])})"


@rule("table2.{model}.ppl_focus", refuted=NO_GAIN)
def retrofit(claim: Claim, results: Results, limits: Tolerances, model: str) -> Outcome:
    """Routers alone on a model of the same attention type: the one that was trained for as many
    steps, else a small one; the gain that the paper has on GPT-2: on the first in any case."""
    attention = claim.keys["attention"]
    condition = "soft" if model.startswith("gpt2") else "hard"
    row = need(models.of_type(results, attention, condition, claim))
    large = of_all_steps(claim, results)
    if condition == "hard":
        same = large is not None and models.attention_of(large["model"]) == attention
        row = large if same else row
    elif scope.fewer_steps(claim, results, row["cell"]):
        row = gate_of_all_steps(claim, results, row)
    before, after = theirs("table2", "ppl_pretrained", model=model), claim.figure
    if not scope.differences(claim, results.cells[row["cell"]], row):
        verdict, why = in_its_setting(row, after, limits)
        return Outcome(verdict, why, ours=float(row["ppl"]), **facts(row, results),
                       same_setting=True)  # fmt: skip
    cost = after / before - 1
    most = max(cost, limits.same_ppl)
    gate, doubt = "training gate", near_only(results, row["model"], most)
    if condition == "hard":
        gate = f"top-2, which keeps {row['distant_density']:.0%} of the distant pairs"
        doubt = doubt or costly(large, most) or spared(row, claim)
    verdict, why = weighed(no_worse(row, cost, claim, results, limits), doubt)
    why = f"{named(row)}, {gate}, against the same model: {why}"
    return Outcome.of(verdict, why, row, results)


@rule(
    "table2.notes.coverage.architectures",
    refuted="a type on which the training gate costs more than the limit far_worse, the interval "
    "above it whole",
)  # fmt: skip
def every_type(results: Results, limits: Tolerances) -> Outcome:
    """The training gate on a small model of every attention type."""
    rows = {name: models.of_type(results, name, "soft") for name in TYPES}
    found = {name: need(row) for name, row in rows.items()}
    worst = max(found.values(), key=lambda row: row["change"])
    blind = [name for name, row in found.items()
             if near_only(results, row["model"], limits.same_ppl)]  # fmt: skip
    close = all(row["high"] <= limits.same_ppl for row in found.values())
    far = any(row["low"] > limits.far_worse for row in found.values())
    verdict = told(close and not blind and not far, far)
    why = "training gate against full attention: " + "; ".join(
        f"{name} {changed(row)}" for name, row in found.items()
    )
    why += f"; a window alone costs hardly more: {', '.join(blind)}" if blind else ""
    return Outcome.of(verdict, why, worst, results)


@rule(
    *(f"table2.{{model}}.{task}" for task in TASKS),
    refuted="an interval of the difference to the score without the mask below zero",
)
def score(claim: Claim, results: Results, limits: Tolerances) -> Outcome:
    """Benchmarks on a model of the same attention type: SmolLM2 where it is that, else ours."""
    own = zero_shot(results, texts=TASKS[claim.column])
    named = only(own, experiment=models.ROUTED)
    same = named[[scope.same_model(claim, each) for each in named["model"]]]
    alike = named[[models.attention_of(each) == claim.keys["attention"]
                   for each in named["model"]]]  # fmt: skip
    other = only(own, role="paper") if claim.keys["attention"] == "GQA" else own.head(0)
    rows = need(next((each for each in (same, other, alike) if len(each)), None))
    return kept(rows.iloc[0], results, limits, claim)


@rule("table2.notes.benchmarks.worst_drop", refuted="an interval below the paper's worst drop")
def worst_drop(claim: Claim, results: Results, limits: Tolerances) -> Outcome:
    """The greatest drop of a zero-shot benchmark under the paper's setup, over all models."""
    own = need(zero_shot(results, texts=list(TASKS.values()), role=["small", "paper"]))
    worst = own.sort_values("points").iloc[0]
    limit, worse = limits.same_score, bool((own["high"] < claim.figure).any())
    reached, elsewhere = (own[f"exposed_{where}_percent"].max()
                          for where in ("questions", "elsewhere"))  # fmt: skip
    verdict = told(not worse and bool((own["low"] >= -limit).all()), worse)
    if not worse and reached <= limit:  # hardly a question can change
        verdict = told(elsewhere <= limit, False, Verdict.ARITHMETIC)
    why = (f"worst of {len(own)}: {worst['texts']} on {worst['model']} {points(worst)}; masks "
           f"reach at most {reached:.0f}% of the questions of one, in the tokens of Mistral or "
           f"Llama 2 up to {elsewhere:.0f}%")  # fmt: skip
    return scored(verdict, why, worst, results)


@rule("table5.{model}.ppl_focus_ft", "domains.{text}.ppl_focus_ft",
      "from_scratch.mistral-7b.ppl_focus", refuted=NO_GAIN)  # fmt: skip
def tuned(claim: Claim, results: Results, limits: Tolerances, text: str = "pg19") -> Outcome:
    """Focus against full attention after as many steps, under the training gate and under the hard
    mask, on a text of the same kind; from scratch a small model with grouped queries, as Mistral
    has them."""
    weights = "fine-tuned"
    if claim.id.startswith("from_scratch"):
        weights, text = "from scratch", "openwebtext"
    texts = models.text_of(results, text, weights)
    full = claim.column.replace("focus", "full_attention")
    cost = claim.figure / theirs(claim.id.split(".")[0], full, **claim.keys) - 1
    gate, mask = (models.of_training(results, weights, "focus", texts, condition, claim)
                  for condition in ("soft", "hard"))  # fmt: skip
    model = results.cells[gate["cell"]].model
    verdict, why = weighed(gate_and_mask(gate, mask, cost, claim, results, limits),
                           near_only(results, model, max(cost, limits.same_ppl)))  # fmt: skip
    why = f"{texts}, against full attention: {why}"
    return Outcome.of(verdict, why, gate, results)


@rule("table1.focus.ppl", "table10.focus.ppl", refuted=NO_GAIN)
def alone(claim: Claim, results: Results, limits: Tolerances) -> Outcome:
    """Routers alone against the pretrained model, under the training gate and under the mask."""
    mask = paper_way(results, 2, claim)
    gate = need(gate_of(results, mask))
    cost = claim.figure / pretrained() - 1
    verdict, why = gate_and_mask(gate, mask, cost, claim, results, limits)
    why = f"{named(mask)}, {mask['texts']}, against pretrained: {why}"
    return Outcome.of(verdict, why, gate, results)


def gate_and_mask(gate: pd.Series, mask: pd.Series, cost: float, claim: Claim, results: Results,
                  limits: Tolerances) -> tuple[Verdict, str]:  # fmt: skip
    """A change beside the paper's, which does not say which of the two it read: a claim stands, or
    falls, where both agree."""
    verdict, why = no_worse(gate, cost, claim, results, limits)
    other, said = weighed(no_worse(mask, cost, claim, results, limits), spared(mask, claim))
    kept = f"hard top-{mask['top_k']:.0f}, {mask['distant_density']:.0%} of the distant pairs"
    return agreed([verdict, other]), f"training gate {why}; {kept}: {said}"


@rule(
    *(f"table5.{model}.ppl_full_attention_ft" for model in MODELS),
    "domains.pg19.ppl_full_attention_ft",
    "table1.full-attention-finetune.ppl",
    refuted="after as many steps, an interval above the model before",
)
def gains(claim: Claim, results: Results) -> Outcome:
    """Fine-tuning under full attention, against the model before, where the paper has both."""
    row = models.gain(results, models.text_of(results, "pg19"), claim)
    before = pretrained()
    if not claim.id.startswith("table1"):
        before = theirs("table2", "ppl_pretrained", model=claim.model)
    verdict, why = same_sign(claim, results, row, claim.figure - before)
    return Outcome.of(verdict, f"{row['texts']}: {why}", row, results)


@rule("long_context.{row}.ppl_topk2", refuted="after as many steps, an interval above the paper's "
      "cost at that length")  # fmt: skip
def longer(claim: Claim, results: Results, limits: Tolerances) -> Outcome:
    """What two of four groups cost against full attention at one length."""
    context = claim.keys["context"]
    methods = [models.LINES[name] for name in ("long_paper", "long_paper_steps")]
    own = need(only(models.lengths(results), method=methods, context=context))
    found = max((row for _, row in own.iterrows()),
                key=lambda row: scope.trained(results, results.cells[row["cell"]]))  # fmt: skip
    cost = claim.figure / theirs("long_context", "ppl_full", context=context) - 1
    judged = no_worse(found, cost, claim, results, limits)
    verdict, why = weighed(judged, spared(found, claim))
    why = (f"at {context} tokens, trained at {found['trained_at']}, "
           f"{found['distant_density']:.0%} of the distant pairs, against full attention: "
           f"{why}")  # fmt: skip
    for _, row in own[own["cell"] != found["cell"]].iterrows():
        why += f"; trained at {row['trained_at']} for fewer steps {changed(row)}"
    return Outcome.of(verdict, why, found, results)
