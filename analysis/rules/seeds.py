"""Rule of audit point 10: how far apart are seeds, where the paper shows one?"""

from __future__ import annotations

from analysis import scope
from analysis.paper import Claim
from analysis.results import Results
from analysis.rules.registry import DIRECTION, INCONCLUSIVE, Outcome, rule
from analysis.settings import LedgerSettings

FEWEST = 3  # seeds from which a spread says anything


@rule("audit.10")
def spread_of_seeds(claim: Claim, results: Results, settings: LedgerSettings) -> Outcome | None:
    """Seeds against documents: from the best to the worst seed, beside half the interval that
    resampled documents give, at every reading of every finalist. No tolerance: a single seed says
    too little where seeds differ by more than the documents leave open; borne out where they do at
    more than half the readings of each finalist."""
    frame = results.recipe
    if frame.empty:
        return None
    own = frame[frame["final"] & (frame["kind"] == "routed") & (frame["seeds"] >= FEWEST)]
    if own.empty:
        return None
    spread = own["delta_most"] - own["delta_least"]
    own = own.assign(spread=spread, wider=spread > (own["delta_high"] - own["delta_low"]) / 2)
    trials = own.groupby("cell", sort=False)["wider"]
    said = "; ".join(f"{cell} {int(wider.sum())} of {len(wider)}" for cell, wider in trials)
    first = own.loc[own["spread"].idxmax()]
    run = results.run("recipe", first["cell"])
    return Outcome(
        DIRECTION if (trials.mean() > 0.5).all() else INCONCLUSIVE,
        "Readings at which the seeds of a finalist lie further apart than half the documents' "
        f"interval: {said}. Furthest: {first['cell']} {first['reading']}, change against "
        f"pretrained {first['delta_least']:+.1%} to {first['delta_most']:+.1%} over "
        f"{int(first['seeds'])} seeds (documents {first['delta_low']:+.1%} to "
        f"{first['delta_high']:+.1%})",
        ours=float(first["spread"]),
        n=int(first["seeds"]),
        evidence=first["evidence"],
        command=run.get("command"),
        scale=scope.describe(run, settings.scale, first["cell"]),
    )
