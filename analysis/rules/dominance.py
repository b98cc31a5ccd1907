"""Rules of the largest group of the default, which five tables of the paper print, and of how
stable assignments are (Section 4).

The paper names no learning rate, and the largest group depends on it and on the model. So every run
of as many steps as the paper's is asked for the default's, and they decide only where they agree.
"""

from __future__ import annotations

from contextlib import suppress

import pandas as pd

from analysis import ablations, scope
from analysis.paper import Claim
from analysis.results import Results
from analysis.rows import Missing, need, only
from analysis.rules.registry import Outcome, Verdict, around, facts, interval, rule, told
from analysis.rules.stability import (
    LOSSES,
    OWN_WEIGHTS,
    SINKHORN,
    known,
    of_groups,
    of_one_small,
    trained,
)
from experiments.settings import Tolerances

METHODS = {"softmax-and-balance-loss": LOSSES, SINKHORN: SINKHORN}


@rule(
    "dominance.{method}.dominance_centroid", "dominance.{method}.dominance_full_ft",
    refuted="an interval wholly beyond the limit same_share from the paper's; without Sinkhorn, "
    "after as many steps",
)  # fmt: skip
def largest_group(claim: Claim, results: Results, limits: Tolerances) -> Outcome:
    """Tokens in the largest group at the end."""
    method, weights = METHODS[claim.keys["method"]], claim.column.endswith("full_ft")
    if method == SINKHORN:
        with suppress(Missing):
            return of_default(claim, results, limits, "joint" if weights else "centroids")
    row = trained(results, method, weights, "largest")
    own, paper = interval(row, "largest"), claim.figure
    late = method != SINKHORN and scope.fewer_steps(claim, results, row["cell"])
    verdict, elsewhere = around(own, paper, limits.same_share, late)
    if paper > limits.collapsed and own["low"] > limits.collapsed:
        verdict = Verdict.DIRECTION  # a collapse is one
    elif paper > limits.collapsed:
        alike = only(ablations.mitigations(results), name=method, weights=weights)
        if elsewhere := elsewhere + collapsed_elsewhere(alike, limits.collapsed):
            verdict = Verdict.INCONCLUSIVE
    why = (f"{own['ours']:.1f}% of the tokens in the largest of {row['groups']} groups "
           f"({own['low']:.1f} to {own['high']:.1f}) after {row['steps']} steps; the paper "
           f"{paper:g}% (limit {limits.same_share:g} points){elsewhere}")  # fmt: skip
    if method != SINKHORN:
        why += f"; {OWN_WEIGHTS}"
    verdict, why = of_one_small(results, row, verdict, why)
    return Outcome(verdict, why, **own, **known(of_groups(row), results, "documents"))


@rule(
    "dominance.{method}.stability_centroid",
    "dominance.{method}.stability_full_ft",
    refuted="after as many steps, of another than a small model, an interval wholly beyond the "
    "limit same_share from the paper's",
)
def stays(claim: Claim, results: Results, limits: Tolerances, method: str) -> Outcome:
    """Tokens that keep their group from one look to the next."""
    row = trained(results, METHODS[method], claim.column.endswith("full_ft"), "agreement")
    own, paper = interval(row, "agreement"), claim.figure
    few = scope.fewer_steps(claim, results, row["cell"])
    verdict, early = around(own, paper, limits.same_share / 100, few)
    why = (f"{own['ours']:.1%} of the tokens keep their group from look to look "
           f"({own['low']:.1%} to {own['high']:.1%}, over layers) after {row['steps']} steps; the "
           f"paper {paper:.1%}{early}")  # fmt: skip
    verdict, why = of_one_small(results, row, verdict, why)
    return Outcome(verdict, why, **own, **known(row, results))


def of_default(claim: Claim, results: Results, limits: Tolerances, trained: str) -> Outcome:
    """The paper's share beside ours of all runs; Missing where none was as long."""
    runs = need(ablations.every_default(results, trained))
    paper, limit = claim.figure, limits.same_share
    low, high = runs["largest_low"], runs["largest_high"]
    within = ((low >= paper - limit) & (high <= paper + limit)).all()
    beyond = (high < paper - limit).all() or (low > paper + limit).all()
    each = ", ".join(f"{run['largest']:.0f}% ({run['model']}, {run['rate']:g})"
                     for run in runs.to_dict("records"))  # fmt: skip
    why = (f"{each} of the tokens in the largest group, by model and learning rate, after as many "
           f"steps; the paper, which names no rate, {paper:g}% (limit {limit:g})")  # fmt: skip
    if not within and not beyond:
        why += ": our runs do not agree"
    models = set(runs["model"])
    if beyond and len(models) == 1 and models.pop().startswith("small-"):
        beyond, why = False, f"{why}; all of one small model"
    ours = float(runs["largest"].iloc[0])
    return Outcome(told(within, beyond), why, ours, **facts(of_groups(runs.iloc[0]), results))


def collapsed_elsewhere(rows: pd.DataFrame, limit: float) -> str:
    """Words for trainings whose largest group has more than ``limit`` percent, empty without."""
    found = [f"{row['largest']:.0f}% in {row['cell']} after {row['steps']} steps"
             for row in rows[rows["largest_low"] > limit].to_dict("records")]  # fmt: skip
    return "; but " + ", ".join(found) if found else ""
