"""Rules of other methods on the same frozen model: Tables 1 and 10, audit point 8, our own claim.

The paper compares on GPT-2; here every method runs on the model that we have, so that only who is
better can be judged, not a figure.
"""

from __future__ import annotations

import pandas as pd

from analysis.cells import ROLES
from analysis.comparisons import quality
from analysis.paper import Claim, table
from analysis.results import Results
from analysis.rivals import ABOUT, BUDGET, EQUAL, against_ours, rows
from analysis.rules.headline import judged
from analysis.rules.registry import Outcome, Verdict, changed, facts, interval, rule
from analysis.settings import LedgerSettings

# The paper's name of a method, and the experiment that stands for it here.
STANDS_FOR = {
    "longformer": "longformer", "performer": "performer",
    "routing-transformer": "routing_transformer", "sparq": "sparq_plain",
    "sparq-mean-reallocation": "sparq", "magicpig": "magicpig",
}  # fmt: skip


def beside(results: Results, experiment: str) -> pd.Series | None:
    """A rival against the recipe at the recipe's own budget."""
    frame = against_ours(results)
    if frame.empty:
        return None
    own = frame[(frame["experiment"] == experiment) & frame["budget"].isin([BUDGET, "own"])]
    return None if own.empty else own.iloc[0]


@rule(
    *(f"{entry}.{method}.ppl" for entry in ("table1", "table10") for method in STANDS_FOR),
    refuted="an interval of the difference to Focus on the other side of zero than the paper's",
)
def rival(claim: Claim, results: Results, settings: LedgerSettings) -> Outcome | None:
    """Whether a rival's perplexity is on the same side of Focus's as in the paper."""
    method = claim.id.split(".")[1]
    row = beside(results, STANDS_FOR[method])
    if row is None:
        return None
    printed = {each["method"]: each["ppl"] for each in table(claim.id.split(".")[0])["rows"]}
    theirs = printed[method] / printed["focus"] - 1
    verdict, worse = Verdict.INCONCLUSIVE, row["low"] > 0
    fewer = row["base_distant_density"] - row["distant_density"] > EQUAL
    if (worse and not fewer) or row["high"] < 0:
        same = (row["change"] > 0) == (theirs > 0)
        verdict = Verdict.DIRECTION if same else Verdict.NOT_REPRODUCED
    kept = "every pair" if row["budget"] == "own" else f"{row['distant_density']:.1%}"
    why = (f"{changed(row)} against our groups ({row['base_distant_density']:.1%} of the distant "
           f"pairs; the rival {kept}); the paper has {theirs:+.1%} against Focus. Run on "
           "another model and text, untrained but for its own centroids")  # fmt: skip
    return Outcome(verdict, why, **facts(row, results))  # no figure beside another model's


@rule("audit.8", refuted="every rival on the frozen model, oracles aside, costs more than "
      "far_worse by more than its interval")  # fmt: skip
def others_do_it(claim: Claim, results: Results, settings: LedgerSettings) -> Outcome | None:
    """Rivals that score no pair in full and keep a part of them, against full attention."""
    own = rows(results)
    partly = [role for role, about in ABOUT.items() if not about.every and role != "performer"]
    own = own[own["role"].isin(partly) & (own["budget"] == BUDGET)].sort_values("change")
    if own.empty:
        return None
    best, limit = own.iloc[0], settings.tolerances.far_worse
    verdict = Verdict.INCONCLUSIVE
    if best["high"] <= limit:
        verdict = Verdict.DIRECTION
    elif (own["low"] > limit).all():
        verdict = Verdict.NOT_REPRODUCED
    why = f"At {BUDGET} of the distant pairs, against full attention: " + "; ".join(
        f"{ROLES[row['role']]} {changed(row)}" for _, row in own.head(4).iterrows()
    )
    return Outcome(verdict, f"{why} (limit {limit:+.0%})", **interval(best),
                   **facts(best, results))  # fmt: skip


@rule("ours.rivals", refuted="one rival, oracles aside, with no more pairs than ours reads better "
      "by more than the interval")  # fmt: skip
def none_is_better(claim: Claim, results: Results, settings: LedgerSettings) -> Outcome | None:
    """Rivals against the recipe at its own budget."""
    frame = against_ours(results)
    if frame.empty:
        return None
    every = [role for role, about in ABOUT.items() if about.every]
    own = frame[(frame["budget"] == BUDGET) & ~frame["role"].isin(every)].sort_values("change")
    if own.empty:
        return None
    equal = own["distant_density"] <= own["base_distant_density"] + EQUAL
    verdict = Verdict.INCONCLUSIVE
    if (equal & (own["high"] < 0)).any():
        verdict = Verdict.NOT_REPRODUCED
    elif (own["low"] > 0).all():
        verdict = Verdict.REPRODUCED
    why = "Against the recipe at its own budget: " + "; ".join(
        f"{ROLES[row['role']]} {changed(row)} at {row['distant_density']:.1%}"
        for _, row in own.head(4).iterrows()
    )
    best = own.iloc[0]
    return Outcome(verdict, why, **interval(best), **facts(best, results), same_setting=True)


@rule("ours.masked", refuted="an interval wholly above same_ppl")
def adapted_under_the_mask(
    claim: Claim, results: Results, settings: LedgerSettings
) -> Outcome | None:
    """LoRA under the mask against as much LoRA under full attention."""
    frame = quality(results)
    own = frame[(frame["role"] == "masked") & (frame["against"] == "adapted_again")]
    own = own[(own["condition"] == "hard") & own["final"].astype(bool)]
    own = own[own["texts"] == "unseen"]
    if own.empty:
        return None
    row, limit = own.iloc[0], settings.tolerances.same_ppl
    verdict = judged(float(row["low"]), float(row["high"]), limit)
    why = (f"{changed(row)} against {row['against']} at {row['distant_density']:.1%} of the "
           f"distant pairs; {int(row['seeds'])} seed(s) (limit {limit:+.0%})")  # fmt: skip
    return Outcome(verdict, why, **interval(row), **facts(row, results), same_setting=True)
