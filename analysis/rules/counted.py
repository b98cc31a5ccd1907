"""Rules of figures that follow by counting, and of the paper's figures held against each other
(audit points 7 and 12)."""

from __future__ import annotations

import pandas as pd

from analysis.paper import Claim, magnitude
from analysis.results import Results
from analysis.rows import Missing, need, row_of
from analysis.rules.registry import COUNTED, Outcome, Verdict, agree, rule
from experiments.settings import Tolerances


def _table(results: Results, name: str) -> tuple[pd.DataFrame, dict[str, str]]:
    """A table that is always written, and what an Outcome says of it."""
    path = results.base / "tables" / f"{name}.csv"
    if not path.is_file():
        raise Missing
    return pd.read_csv(path), {"evidence": results.evidence(path), **COUNTED}


@rule(
    "table1.{row}.trained_params", "table3.{row}.trained_params", "table4.{row}.trained_params",
    "routing_dim.{row}.centroid_params", "routing_dim.{row}.percent_of_model",
    "table2.notes.{row}.percent_of_model", "table7.{row}.k1.pairs_retained",
    refuted="another count than the printed one, which no figure of the paper has either",
)  # fmt: skip
def counted(claim: Claim, results: Results, limits: Tolerances) -> Outcome:
    """A printed figure against the count from the model's published shape, or from balance."""
    frame, known = _table(results, "parameters")
    found, limit = need(row_of(frame, claim=claim.id)), limits.rounding
    ours, paper = float(found["ours"]), claim.figure
    percent = claim.column in ("percent_of_model", "pairs_retained")
    why = f"{found['how']}: {ours:.3g}%" if percent else f"{found['how']} = {ours:,.0f}"
    if agree(ours, paper, limit):
        return Outcome(Verdict.ARITHMETIC, why, ours=ours, **known)
    why = f"{why}, which the printed {claim.paper} is not"
    also, larger = (magnitude(found["also"]) if pd.notna(found["also"]) else None,
                    found["of_larger_whole"])  # fmt: skip
    if also is not None and agree(ours, also, limit):
        why += f"; elsewhere the paper has {found['also']} for the same"
        return Outcome(Verdict.CONTRADICTS, why, ours=ours, **known)
    if agree(float(larger), paper, limit):  # never where there is no larger whole (NaN)
        why += f"; against the model with routers of 768 dimensions it would be {larger:.3g}%"
        return Outcome(Verdict.INCONCLUSIVE, why, ours=ours, **known)
    return Outcome(Verdict.NOT_REPRODUCED, why, ours=ours, **known)


@rule("audit.7", refuted="the same figure in all tables that have it, within rounding")
def spread(results: Results, limits: Tolerances) -> Outcome:
    """Smallest and largest figure of each quantity that the paper reports more than once."""
    frame, known = _table(results, "repeated")
    parts, worst = [], 0.0
    for quantity, rows in frame.groupby("quantity", sort=False):
        values = [magnitude(v) or 0.0 for v in rows["paper"].astype(str)]
        low, high = min(values), max(values)
        worst = max(worst, high / low - 1)
        parts.append(f"{quantity}: {low:g} to {high:g} in {len(values)} tables")
    verdict = Verdict.CONTRADICTS if worst > limits.rounding else Verdict.NOT_REPRODUCED
    return Outcome(verdict, "; ".join(parts), ours=100 * worst, n=len(parts), **known)


@rule("audit.12", refuted="Focus level with the better LoRA, within rounding, or below it")
def confound(results: Results, limits: Tolerances) -> Outcome:
    """Focus in the paper's Table 3, against the pretrained and against the adapted model."""
    frame, known = _table(results, "confound")
    row = need(frame[frame["method"].str.startswith("focus")]).iloc[0]
    cost = float(row["against_adapted"])
    why = (f"{row['ppl']} is {row['against_pretrained']:+.1%} against the pretrained model and "
           f"{cost:+.1%} against full attention adapted on the same text by LoRA")  # fmt: skip
    verdict = Verdict.ARITHMETIC if cost > limits.rounding else Verdict.NOT_REPRODUCED
    return Outcome(verdict, why, ours=100 * cost, **known)
