"""Rule of audit point 9: do trained routers beat routings that learnt nothing, at equal density?"""

from __future__ import annotations

import pandas as pd

from analysis import scope
from analysis.paper import Claim
from analysis.results import Results
from analysis.rules.registry import DIRECTION, INCONCLUSIVE, NOT_REPRODUCED, Outcome, rule
from analysis.settings import LedgerSettings

# An oracle is none of these: it knows the weights, and routers need not beat it.
NAMES = {
    "random": "random routers",
    "position": "groups by position",
    "token": "groups by token identity",
    "window": "the window alone, widened to the same density",
}


def _said(row: pd.Series) -> str:
    return (
        f"{NAMES[row['kind']]} at top-{int(row['top_k'])}: "
        f"{row['versus_routed']:+.1%} ({row['versus_routed_low']:+.1%} to "
        f"{row['versus_routed_high']:+.1%}; density {row['density']:.3f})"
    )


def _of_finalists(results: Results) -> str:
    """The control nearest to the routers of each finalist of the recipe stage, of those that know
    nothing of the weights, in words; empty where none was made."""
    frame = results.recipe
    if "versus_routed_low" not in frame:
        return ""
    near = frame[frame["final"].astype(bool) & frame["kind"].isin(NAMES)]
    near = near.dropna(subset="versus_routed_low").sort_values("versus_routed_low")
    said = [
        f"{row['trial']} {NAMES[row['kind']]}{', with the same further keys' * bool(row['ngram'])} "
        f"{row['versus_routed']:+.1%} ({row['versus_routed_low']:+.1%} to "
        f"{row['versus_routed_high']:+.1%}) at {row['distant_density']:.0%} of the distant pairs"
        for row in near.groupby("trial").head(1).sort_values("trial").to_dict("records")
    ]
    text = "; ".join(said)
    where = "results/recipe, at the recipe's length of text"
    return f". With more training ({where}), the nearest control of each: {text}" if said else ""


@rule("audit.9")
def routing_against_chance(
    claim: Claim, results: Results, settings: LedgerSettings
) -> Outcome | None:
    """Perplexity of each control relative to the trained routers, paired over documents."""
    frame = results.controls
    others = frame[frame["kind"].isin(NAMES)]
    if others.empty:
        return None
    routed = frame[frame["kind"] == "routed"]
    run = results.run("controls")
    worst = others.sort_values("versus_routed_low").iloc[0]
    densities = ", ".join(f"top-{int(r.top_k)} {r.density:.3f}" for r in routed.itertuples())
    why = (
        f"Perplexity relative to the trained routers of {worst['variant']} (density {densities}): "
        + "; ".join(_said(row) for _, row in others.iterrows())
        + _of_finalists(results)
        + ". Not measured: shuffled gates, and as many parameters elsewhere"
    )
    if (others["versus_routed_low"] > 0).all():
        verdict, first = DIRECTION, "Trained routers beat every control by more than the interval"
    elif (others["versus_routed_high"] < 0).any():
        verdict, first = NOT_REPRODUCED, "A control beats the trained routers"
    else:
        verdict, first = INCONCLUSIVE, "A control is as good within the interval"
    return Outcome(
        verdict,
        f"{first}. {why}",
        ours=float(worst["versus_routed"]),
        low=float(worst["versus_routed_low"]),
        high=float(worst["versus_routed_high"]),
        n=int(worst["n_documents"]),
        evidence=worst["evidence"],
        command=run.get("command") or "python -m experiments.stages.controls",
        scale=scope.describe(run, settings.scale),
    )
