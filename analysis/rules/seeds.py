"""Rule of audit point 10: how far apart are seeds, where the paper shows one?"""

from __future__ import annotations

from analysis import scope
from analysis.paper import Claim
from analysis.results import Results
from analysis.rules.registry import DIRECTION, NOT_REPRODUCED, Outcome, rule
from analysis.settings import LedgerSettings

FEWEST = 3  # seeds from which a spread says anything


@rule("audit.10")
def spread_of_seeds(claim: Claim, results: Results, settings: LedgerSettings) -> Outcome | None:
    """Perplexity of the worst seed over that of the best, less one, of the recipe's finalists."""
    frame = results.recipe
    if frame.empty:
        return None
    own = frame[frame["final"] & (frame["kind"] == "routed") & (frame["seeds"] >= FEWEST)]
    if own.empty:
        return None
    own = own.assign(spread=(1 + own["delta_most"]) / (1 + own["delta_least"]) - 1)
    widest = own.sort_values("spread").iloc[-1]
    limit = settings.tolerances.seed_spread
    apart = bool(widest["spread"] > limit)
    run = results.run("recipe", widest["cell"])
    said = "; ".join(
        f"{row.reading} {row.delta_least:+.1%} to {row.delta_most:+.1%} "
        f"(documents {row.delta_low:+.1%} to {row.delta_high:+.1%})"
        for row in own.itertuples()
    )
    return Outcome(
        DIRECTION if apart else NOT_REPRODUCED,
        f"Seeds differ by {widest['spread']:.1%} of the perplexity at most, "
        f"{'above' if apart else 'within'} the tolerance of {limit:.1%}. Change against "
        f"pretrained, from the best to the worst of {int(widest['seeds'])} seeds: {said}",
        ours=float(widest["spread"]),
        n=int(widest["seeds"]),
        evidence=widest["evidence"],
        command=run.get("command")
        or f"python -m experiments.stages.recipe --cell {widest['cell']}",
        scale=scope.describe(run, settings.scale),
    )
