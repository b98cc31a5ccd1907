"""Rules of pairs that belong together: whether groups lose copying because they leave out what it
needs, and whether distant words that belong together share a group."""

from __future__ import annotations

from analysis import pairs
from analysis.paper import Claim
from analysis.results import Results
from analysis.rows import need, only
from analysis.rules.registry import Outcome, Verdict, points, rule, told
from analysis.words import ranged

HALF = 50.0  # percent: most of the weight


@rule("ours.copying.groups", refuted="an interval of the weight on pairs in a shared group "
      "wholly above a half, or one of what missed tokens cost more below zero")  # fmt: skip
def left_out(results: Results) -> Outcome:
    """The recipe's groups without n-gram keys, all layers together."""
    row = need(only(pairs.induction(results), role="ours", ngram=0, layer="all")).iloc[0]
    good = row["weight_shared_high"] < HALF and row["dearer_low"] > 0
    bad = row["weight_shared_low"] > HALF or row["dearer_high"] < 0
    why = (f"{row['shared']:.0f}% of the pairs lie in a shared group, {row['chance']:.0f}% of all "
           f"distant ones; by full attention's weight {ranged(row, 'weight_shared', '.0f', '%')}, "
           f"by chance {row['weight_chance']:.0f}%; above full attention a token costs "
           f"{row['missed_nats']:.2f} nats where most is missed, {row['met_nats']:.2f} elsewhere: "
           f"{ranged(row, 'dearer', '+.2f')}")  # fmt: skip
    verdict = told(good, bad, Verdict.REPRODUCED)
    return Outcome.of(verdict, why, row, results, "weight_shared", same_setting=True)


@rule(
    "ours.affinity.{link}", "ours.paper_affinity.{link}",
    refuted="an interval of what the link's pairs share beyond chance wholly below zero, or below "
    "that of other words",
)  # fmt: skip
def affine(claim: Claim, results: Results, link: str) -> Outcome:
    """In the recipe or the paper's setup, beside random pairs, and beside pairs of words that are
    alike but for what links them."""
    role = "paper" if claim.id.startswith("ours.paper_affinity") else "ours"
    every = only(pairs.affinity(results), role=role, ngram=0, layer="all")
    row = need(only(every, link=link)).iloc[0]
    other = pairs.PLAIN_LINKS[link]
    good = row["more_low"] > 0 and row["beyond_low"] > 0
    bad = row["more_high"] < 0 or row["beyond_high"] < 0
    why = (f"{row['shared']:.1f}% of {row['pairs']} pairs ({pairs.LINKS[link]}) lie in a shared "
           f"group, {row['chance']:.1f}% of random ones at the same distances: "
           f"{points(row, 'more')}; beyond {pairs.LINKS[other]}: "
           f"{points(row, 'beyond')}")  # fmt: skip
    verdict = told(good, bad, Verdict.REPRODUCED)
    return Outcome.of(verdict, why, row, results, "beyond", same_setting=True)
