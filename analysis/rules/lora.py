"""Rules of LoRA beside the routers: Tables 3 and 4 and what it moves of answers, on the
model and the plays that we have.

Where ours trains for fewer steps than the paper's: Adam moves a weight by about rate times steps,
so a rate of Table 4 stands beside the one of ours with the nearest product.
"""

from __future__ import annotations

from contextlib import suppress

import pandas as pd

from analysis import answers, scope
from analysis.cells import Cell
from analysis.comparisons import best, quality
from analysis.paper import Claim, theirs
from analysis.results import Results
from analysis.rows import Missing, columns, need, only, row_of
from analysis.rules.ablations import FAR_LESS, beside, beside_paper, pretrained
from analysis.rules.answers import NAMES, scored
from analysis.rules.registry import (
    EARLY,
    Outcome,
    Verdict,
    changed,
    facts,
    interval,
    judged,
    points,
    rule,
    told,
)
from analysis.rules.table7 import gate_of, paper_way
from analysis.words import ranged
from experiments import statistics
from experiments.settings import Tolerances

# The longest last.
BLOCKS = {"lora-r4": ("lora4", "lora4_steps"), "lora-r16": ("lora16", "lora16_steps")}
RATES = ("1e-5", "5e-5", "1e-4")
# Percent that guessing has; of TruthfulQA the mean over its 817 questions, of 2 to 13 choices.
GUESSED = {"hellaswag": 25.0, "arc_easy": 25.0, "piqa": 50.0, "truthfulqa_mc1": 22.6}


def nearest(results: Results, wanted: float) -> Cell:
    """The rank 4 cell whose rate times steps is nearest to the paper's, as a ratio."""
    cells = [each for each in results.cells.values() if each.block in BLOCKS["lora-r4"]]

    def apart(cell: Cell) -> float:
        own = float(cell.regime["learning_rate"]) * (cell.steps or 0)
        return max(own / wanted, wanted / own)

    return min(need(cells), key=apart)


def before(claim: Claim) -> float:
    """The paper's figure that a claim's is held against."""
    if claim.id.startswith("table4"):
        return theirs("table4", claim.column, method="instruct")
    return pretrained() if claim.column == "ppl" else 0.0  # changes already


@rule(
    "table3.{method}.ppl", "table4.focus-k2.ppl", "table4.lora-r4-lr{rate}.ppl",
    refuted="an interval on the other side of the pretrained model than the paper's",
)  # fmt: skip
def lora_perplexity(claim: Claim, results: Results, limits: Tolerances) -> Outcome:
    """What was trained against the model before, on test documents."""
    row = need(row_of(quality(results), cell=cell_of(claim, results).name, final=True,
                      base_role="pretrained", condition=["full", "soft"]))  # fmt: skip
    change, limit = claim.figure / before(claim) - 1, limits.same_ppl
    verdict, said = beside_paper(row, change, limits)
    few = scope.fewer_steps(claim, results, row["cell"])
    gains, harm = row["high"] < 0, change > -limit
    if few and (row["low"] > 0 if ".focus" in claim.id else gains and harm):
        verdict, said = Verdict.INCONCLUSIVE, "too few steps to tell"
    elif few and said == FAR_LESS:
        said += EARLY
    why = (f"{row['cell']} on {row['texts']}: {changed(row)} against the pretrained model; the "
           f"paper {change:+.1%}: {said}{trained(results.cells[row['cell']], claim)}")  # fmt: skip
    return Outcome.of(verdict, why, row, results)


def cell_of(claim: Claim, results: Results) -> Cell:
    """What stands for a row of Table 3 or 4."""
    entry, method, _ = claim.id.split(".")
    if method.startswith("focus"):
        return results.cells[paper_way(results, 2)["cell"]]
    if entry == "table3":
        read = {each.block for each in results.cells.values()}
        return rate_of(results, need([each for each in BLOCKS[method] if each in read])[-1])
    return nearest(results, float(method.rsplit("lr", 1)[1]) * claim.setting["steps"])


def of_weights(results: Results, cell: Cell) -> list[str]:
    """The cell, and those that only read its weights under full attention."""
    return [cell.name, *(each.name for each in results.cells.values() if each.start == cell.name
                         and each.steps is None and each.method.get("name") == "full")]  # fmt: skip


def rate_of(results: Results, block: str) -> Cell:
    """The cell of a block at the rate that is best on validation documents."""
    return best(results, [each.name for each in results.cells.values() if each.block == block])


def above_guessing(claim: Claim, more: float, base: float) -> float:
    """The paper's change in points, for a model that is nearer to guessing than its own."""
    guessed, theirs = GUESSED.get(claim.column, 0.0), before(claim)
    return more * (base - guessed) / (theirs - guessed) if theirs > guessed else more


def trained(cell: Cell, claim: Claim) -> str:
    """The steps, and the rate of LoRA or the groups of Focus, in words."""
    if cell.regime.get("name") != "lora":
        theirs = claim.keys["method"].rpartition("-k")[2] if "-k" in claim.id else ""
        groups = f", {cell.method['num_groups']} groups, the paper {theirs}" if theirs else ""
        return f"; {cell.steps} steps, training gate{groups}"
    return f"; {cell.steps} steps at a rate of {cell.regime['learning_rate']:g}"


@rule(
    *(f"table3.{method}.{task}" for method in BLOCKS for task in NAMES),
    *(f"table4.lora-r4-lr{rate}.{task}" for rate in RATES for task in NAMES),
    refuted="an interval of the difference to the model before on the other side of zero, or "
    "beyond the limit same_score where the paper's difference is small; where it is large, one "
    "around zero that does not reach the share much_less of it, nor of the same share of what is "
    "above guessing",
)
def lora_score(claim: Claim, results: Results, limits: Tolerances) -> Outcome:
    """A benchmark after LoRA, question by question beside the model before."""
    cell, more = cell_of(claim, results), claim.figure - before(claim)
    own = need(only(answers.scores(results), cell=of_weights(results, cell),
                    texts=NAMES[claim.column]))  # fmt: skip
    row = own.loc[own["questions"].idxmax()]
    few = scope.fewer_steps(claim, results, cell.name)
    verdict, said = beside(interval(row, "points"), more, limits.same_score, limits.much_less,
                           few)  # fmt: skip
    if not row["changed_percent"]:
        verdict, said = Verdict.INCONCLUSIVE, "no answer changed"
    share = above_guessing(claim, more, float(row["base_score"]))
    far = row["low"] if share < 0 else row["high"]
    reaches = share * more > 0 and far / share >= limits.much_less
    if verdict == Verdict.NOT_REPRODUCED and reaches and abs(more) > limits.same_score:
        verdict = Verdict.INCONCLUSIVE
        said += (f", but the interval has half of {share:+.1f}, the same share of what is above "
                 "guessing here")  # fmt: skip
    why = (f"{row['score']:.0f}%, {points(row)} against the model before; the paper "
           f"{more:+.1f}: {said}{trained(cell, claim)}")  # fmt: skip
    return scored(verdict, why, row, results)


@rule("audit.11", refuted="LoRA is not better than the pretrained model, or gains less than the "
      "paper's routers do, by more than the intervals")  # fmt: skip
def any_training(results: Results) -> Outcome:
    """LoRA of rank 4, and the paper's routers under their training gate, against the pretrained
    model on the same test documents; the longest training of both."""
    gate = need(gate_of(results, paper_way(results, 2)))
    same = {name: gate[name] for name in ("reading", "texts")}
    own = only(quality(results), base_role="pretrained", condition="full", **same)
    read = {results.cells[name].block for name in own["cell"]}
    block = need([each for each in BLOCKS["lora-r4"] if each in read])[-1]
    row = need(row_of(own, cell=rate_of(results, block).name))
    both = [(row, "full attention"), (gate, "training gate")]
    why = "; ".join(f"{each['cell']}, {scope.trained(results, results.cells[each['cell']]):,} "
                    f"steps, {how}: {changed(each)}" for each, how in both)  # fmt: skip
    verdict = told(row["high"] < 0 and row["change"] <= gate["change"],
                   row["low"] >= 0 or row["low"] > gate["high"])  # fmt: skip
    why = f"Against pretrained, same test documents: {why}"
    return Outcome.of(verdict, why, row, results)


# LoRA and the paper's mask: both after 24 steps, and after the paper's, which decide.
BESIDE = (("lora4", "answers_paper"), ("lora4_steps", "truthful_paper"))


@rule("ours.chat.{before}", refuted="an interval of the difference wholly below zero: LoRA's "
      "answers are nearer")  # fmt: skip
def further(results: Results, before: str) -> Outcome:
    """LoRA at its best rate against the paper's mask, by the same questions."""
    found = []
    for block, routed in BESIDE:
        with suppress(Missing):
            found.append(moved(results, block, routed, int(before)))
    *earlier, (own, mask, more, why) = need(found)
    for *_, words in earlier:
        why += f"; after far fewer steps of each {words}"
    if int(before):
        why += "; the questions follow pages of validation plays, not of test ones"
    known = facts(own, results, "questions") | columns(more, "ours")
    known["unit"] = "nats a token more or less"
    verdict = judged(-more.high, -more.low, 0.0)
    if verdict == Verdict.REPRODUCED and not mask["divergence"]:
        verdict, why = Verdict.ARITHMETIC, f"{why}; the mask reaches no question"
    return Outcome(verdict, why, **known, same_setting=True)


def moved(results: Results, block: str, routed: str,
          before: int) -> tuple[pd.Series, pd.Series, statistics.Interval, str]:  # fmt: skip
    """How far LoRA at its best rate and a mask move answers, the difference, and all in words."""
    cell = rate_of(results, block)
    more = answers.apart(results, cell.name, routed, before)
    own, mask = (only(answers.distances(results), cell=name, before=before).iloc[0]
                 for name in (cell.name, routed))  # fmt: skip
    why = (f"{cell.name}, {cell.steps:,} steps, {own['divergence']:.3f} nats per token from the "
           "original model's answers, the paper's mask with causal balance "
           f"{mask['divergence']:.3f}: {ranged(vars(more), 'value', '+.3f')}")  # fmt: skip
    return own, mask, more, why
