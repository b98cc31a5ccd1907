"""Rules of other methods on the same frozen model: Tables 1 and 10, audit point 8, our own claim.

The paper compares on GPT-2; here every method runs on the model that we have, so that only the
direction of a change can be judged, not a figure.
"""

from __future__ import annotations

from analysis import scope
from analysis.cells import ROLES
from analysis.comparisons import quality
from analysis.paper import Claim, theirs
from analysis.results import Results
from analysis.rivals import ABOUT, BUDGET, EQUAL, against_ours, rows
from analysis.rows import need, only, row_of
from analysis.rules.ablations import beside
from analysis.rules.headline import judged
from analysis.rules.registry import EARLY, Outcome, Verdict, changed, facts, interval, rule, told
from analysis.rules.table7 import paper_way
from experiments.settings import Tolerances

# The paper's name of a method, and the experiment that stands for it here.
STANDS_FOR = {
    "longformer": "longformer", "performer": "performer",
    "routing-transformer": "routing_transformer", "sparq": "sparq_plain",
    "sparq-mean-reallocation": "sparq", "magicpig": "magicpig",
}  # fmt: skip
KEYS = 32  # a query, of Table 10


@rule(
    *(f"{entry}.{method}.ppl" for entry in ("table1", "table10") for method in STANDS_FOR),
    refuted="where the paper's rival harms the pretrained model, an interval against full "
    "attention below zero or wholly within the limit same_ppl, with no more keys a query than the "
    "paper's where it names them",
)
def rival(claim: Claim, results: Results, limits: Tolerances) -> Outcome:
    """What a rival changes, against the model that it runs on."""
    (entry, method, _), frame = claim.id.split("."), rows(results)
    row = need(row_of(frame, experiment=STANDS_FOR[method], budget=[BUDGET, "own"]))
    change = claim.figure / theirs(entry, "ppl", method="pretrained") - 1
    limit = 100 * limits.same_ppl
    verdict, said = beside(interval(row), 100 * change, limit, limits.much_less)
    if change < 0 and verdict == Verdict.NOT_REPRODUCED:
        # Our model was adapted before; what the paper's gain owes to training, nobody knows.
        verdict, said = Verdict.INCONCLUSIVE, f"{said}, on a model that has gained before"
    keys = row["density"] * row["context"] / 2  # a query, in the mean over a causal mask
    if entry == "table10" and verdict == Verdict.NOT_REPRODUCED and keys > KEYS:
        verdict, said = Verdict.INCONCLUSIVE, f"{said}, with {keys:.0f} keys a query, not {KEYS}"
    kept = "all" if row["budget"] == "own" else f"{row['distant_density']:.1%}"
    why = (f"{changed(row)} against full attention ({kept} of the distant pairs), on an adapted "
           f"model; the paper has {change:+.1%} against pretrained: {said}")  # fmt: skip
    return Outcome(verdict, why, **interval(row), **facts(row, results))


@rule("audit.8", refuted="every rival on the frozen model, oracles aside, costs more than "
      "far_worse by more than its interval")  # fmt: skip
def others_do_it(results: Results, limits: Tolerances) -> Outcome:
    """Rivals that score no pair in full and keep a part of them, against full attention."""
    partly = [role for role, about in ABOUT.items() if not about.every and role != "performer"]
    own = need(only(rows(results), role=partly, budget=BUDGET)).sort_values("change")
    best, limit = own.iloc[0], limits.far_worse
    verdict = told(best["high"] <= limit, (own["low"] > limit).all())
    why = f"At {BUDGET} of the distant pairs, against full attention: " + "; ".join(
        f"{ROLES[row['role']]} {changed(row)}"
        for _, row in own.drop_duplicates("role").head(4).iterrows()
    )
    return Outcome(verdict, f"{why} (limit {limit:+.0%})", **interval(best),
                   **facts(best, results))  # fmt: skip


@rule("ours.rivals", refuted="one rival, oracles aside, with no more pairs than ours reads better "
      "by more than the interval")  # fmt: skip
def none_is_better(results: Results) -> Outcome:
    """Rivals against the recipe at its own budget."""
    others = [role for role, about in ABOUT.items() if not about.every]
    own = need(only(against_ours(results), budget=BUDGET, role=others)).sort_values("change")
    equal = own["distant_density"] <= own["base_distant_density"] + EQUAL
    beaten = (equal & (own["high"] < 0)).any()
    verdict = told((own["low"] > 0).all() and not beaten, beaten, Verdict.REPRODUCED)
    why = "Against the recipe at its own budget: " + "; ".join(
        f"{ROLES[row['role']]} {changed(row)} at {row['distant_density']:.1%}"
        for _, row in own.drop_duplicates("role").head(4).iterrows()
    )
    best = own.iloc[0]
    return Outcome(verdict, why, **interval(best), **facts(best, results), same_setting=True)


@rule("ours.masked", refuted="an interval wholly above same_ppl")
def adapted_under_the_mask(results: Results, limits: Tolerances) -> Outcome:
    """LoRA under the mask against as much LoRA under full attention."""
    row = need(row_of(quality(results), role="masked", against="adapted_again", condition="hard",
                      final=True, texts="unseen"))  # fmt: skip
    limit, seeds = limits.same_ppl, int(row["seeds"])
    counted = f"{seeds} seed{'s' * (seeds > 1)}"
    verdict = judged(float(row["low"]), float(row["high"]), limit)
    why = (f"{changed(row)} against {row['against']} at {row['distant_density']:.1%} of the "
           f"distant pairs; {counted} (limit {limit:+.0%})")  # fmt: skip
    return Outcome(verdict, why, **interval(row), **facts(row, results), same_setting=True)


@rule("figure1.pareto.finding", refuted="after as many steps, two of four groups are slower than "
      "full attention or read worse than it, by more than the interval")  # fmt: skip
def faster_and_better(claim: Claim, results: Results) -> Outcome:
    """Whether the paper's mask is both, against the pretrained model as in the paper; whether it
    alone is does not matter where it is not."""
    own = paper_way(results, 2)
    mask = need(row_of(results.table("masks"), method="groups", K=own["K"], k=own["top_k"]))
    few = scope.fewer_steps(claim, results, own["cell"])
    slower, worse = mask["time_low"] > 1, own["low"] > 0 and not few
    verdict = told(mask["time_high"] < 1 and own["high"] < 0, slower or worse)
    window = results.cells[own["cell"]].method.get("window", 128)
    why = (f"Perplexity on {own['texts']} is {changed(own)} at {own['context']:,.0f} tokens under "
           f"two of {own['K']:.0f} groups and a window of {window}{EARLY * few}"
           f"; such a mask takes {mask['time']:.0%} of full attention's time at "
           f"{mask['length']:,.0f} tokens on a CPU (window 128), no card timed it")  # fmt: skip
    return Outcome(verdict, why, **interval(own), **facts(own, results))
