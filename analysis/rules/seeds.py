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
    resampled documents give, at every reading of the finalist with the most seeds. No tolerance: a
    single seed says too little where seeds differ by more than the documents leave open."""
    frame = results.recipe
    if frame.empty:
        return None
    own = frame[frame["final"] & (frame["kind"] == "routed") & (frame["seeds"] >= FEWEST)]
    if own.empty:
        return None
    own = own[own["cell"] == own.loc[own["seeds"].idxmax(), "cell"]]
    spread = own["delta_most"] - own["delta_least"]
    wider = spread > (own["delta_high"] - own["delta_low"]) / 2
    first = own.loc[spread.idxmax()]
    run = results.run("recipe", first["cell"])
    said = "; ".join(
        f"{row.reading} {row.delta_least:+.1%} to {row.delta_most:+.1%} "
        f"(documents {row.delta_low:+.1%} to {row.delta_high:+.1%})"
        for row in own.itertuples()
    )
    return Outcome(
        DIRECTION if wider.mean() > 0.5 else INCONCLUSIVE,
        f"Seeds of {first['cell']} lie further apart than half the documents' interval at "
        f"{int(wider.sum())} of {len(own)} readings. Change against pretrained, from the best to "
        f"the worst of {int(first['seeds'])} seeds: {said}",
        ours=float(spread.max()),
        n=int(first["seeds"]),
        evidence=first["evidence"],
        command=run.get("command"),
        scale=scope.describe(run, settings.scale, first["cell"]),
    )
