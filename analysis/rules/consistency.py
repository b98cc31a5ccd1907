"""Rule of audit point 7: the paper's figures for one quantity, held against each other."""

from __future__ import annotations

import pandas as pd

from analysis.paper import Claim, magnitude
from analysis.results import Results
from analysis.rules.registry import ARITHMETIC, NOT_REPRODUCED, Outcome, rule
from analysis.settings import LedgerSettings


@rule("audit.7")
def spread(claim: Claim, results: Results, settings: LedgerSettings) -> Outcome | None:
    """Smallest and largest figure of each quantity that the paper reports more than once."""
    path = results.root / "tables" / "repeated.csv"
    if not path.is_file():
        return None
    parts, worst = [], 0.0
    for quantity, rows in pd.read_csv(path, dtype={"paper": str}).groupby("quantity", sort=False):
        values = [magnitude(v) or 0.0 for v in rows["paper"]]
        low, high = min(values), max(values)
        worst = max(worst, high / low - 1)
        parts.append(f"{quantity}: {low:g} to {high:g} in {len(values)} tables")
    verdict = ARITHMETIC if worst > settings.tolerances.rounding else NOT_REPRODUCED
    why = "; ".join(parts) + ". Here one protocol is pinned in params.yaml for every perplexity"
    return Outcome(
        verdict,
        why,
        ours=worst,
        n=len(parts),
        evidence=results.evidence(path),
        command="python -m analysis",
        scale="any: the paper's tables against each other",
    )
