"""Rules for figures that follow from a model's shape by counting."""

from __future__ import annotations

import pandas as pd

from analysis.paper import Claim, magnitude
from analysis.results import Results
from analysis.rules.registry import ARITHMETIC, INCONCLUSIVE, NOT_REPRODUCED, Outcome, agree, rule
from analysis.settings import LedgerSettings


@rule(
    "table1.{row}.trained_params",
    "table3.{row}.trained_params",
    "table4.{row}.trained_params",
    "routing_dim.{row}.centroid_params",
    "routing_dim.{row}.percent_of_model",
    "table2.notes.{row}.percent_of_model",
)
def counted(claim: Claim, results: Results, settings: LedgerSettings, row: str) -> Outcome | None:
    """A number of parameters against the count from the model's published shape."""
    path = results.root / "tables" / "parameters.csv"
    if not path.is_file():
        return None
    frame = pd.read_csv(path)
    found = frame[frame["claim"] == claim.id]
    if found.empty:
        return None
    ours, paper = float(found.iloc[0]["ours"]), float(magnitude(claim.paper) or 0.0)
    share = claim.column == "percent_of_model"
    why = (
        f"{found.iloc[0]['how']}: {ours:.3g}%" if share else f"{found.iloc[0]['how']} = {ours:,.0f}"
    )
    verdict, larger = ARITHMETIC, float(found.iloc[0]["of_larger_whole"])
    limit = settings.tolerances.rounding
    if not agree(ours, paper, limit):
        verdict, why = NOT_REPRODUCED, f"{why}, which the printed {claim.paper} is not"
        if agree(larger, paper, limit):  # never where there is no larger whole (NaN)
            verdict = INCONCLUSIVE
            why += (
                "; counted against the model with routers of 768 dimensions it would be "
                f"{larger:.3g}%"
            )
    return Outcome(
        verdict,
        why,
        ours=ours,
        evidence=results.evidence(path),
        command="python -m analysis",
        scale="any: counted, not run",
    )
