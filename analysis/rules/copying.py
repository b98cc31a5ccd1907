"""Rule of audit point 11: is what a text says earlier still found where perplexity hardly moves?"""

from __future__ import annotations

import pandas as pd

from analysis import scope
from analysis.paper import Claim
from analysis.results import Results
from analysis.rules.registry import DIRECTION, INCONCLUSIVE, NOT_REPRODUCED, Outcome, rule
from analysis.settings import LedgerSettings


@rule("audit.11")
def copying_behind_perplexity(
    claim: Claim, results: Results, settings: LedgerSettings
) -> Outcome | None:
    """Masks within `same_ppl` of the pretrained perplexity on held-out books (the recipe stage's),
    held against `copied`, by the one that copies most: the doubt falls where a single mask
    copies."""
    own = close(results, settings.tolerances.same_ppl)
    if own.empty:
        return None
    limit = settings.tolerances.copied
    best = own.loc[own["copied"].idxmax()]
    if best["copied_high"] < limit:
        verdict, first = DIRECTION, "None copies"
    elif best["copied_low"] >= limit:
        verdict, first = NOT_REPRODUCED, "At least one copies"
    else:
        verdict, first = INCONCLUSIVE, "The interval of the best leaves it open"
    said = "; ".join(
        f"{row.trial} {row.reading} {row.copied:.0%} ({row.copied_low:.0%} to "
        f"{row.copied_high:.0%}) at {row.delta:+.1%} perplexity" for row in own.itertuples()
    )  # fmt: skip
    run = results.run("copying", best["cell"])
    return Outcome(
        verdict,
        f"{first} (at least {limit:.0%} of what the pretrained model gains from having read a "
        f"passage of {best['passage']} tokens before). Share found by masks within "
        f"{settings.tolerances.same_ppl:.0%} of the pretrained perplexity: {said}",
        ours=float(best["copied"]), low=float(best["copied_low"]), high=float(best["copied_high"]),
        n=int(best["n_documents"]), evidence=best["evidence"], command=run.get("command"),
        scale=scope.describe(run, settings.scale),
    )  # fmt: skip


def close(results: Results, most: float) -> pd.DataFrame:
    """Rows of trained routers' masks whose perplexity is at most ``most`` (relative) above the
    pretrained model's, with that as ``delta``."""
    copied, scored = results.copying, results.recipe
    copied = copied[copied["kind"] == "routed"]
    scored = scored[scored["final"].astype(bool) & (scored["kind"] == "routed")]
    both = copied.merge(scored[["trial", "reading", "delta"]], on=["trial", "reading"])
    return both[both["delta"] <= most]
