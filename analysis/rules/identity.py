"""Rules of what masks nothing: from k = 3 of K = 4 on two choices always meet (Table 7, its
long-context echo, audit point 1)."""

from __future__ import annotations

import pandas as pd

from analysis.paper import Claim, table
from analysis.results import Results
from analysis.rules.registry import ARITHMETIC, NOT_REPRODUCED, Outcome, rule
from analysis.rules.topk import facts, hard, table7_row
from analysis.settings import LedgerSettings


def identity(rows: pd.DataFrame, settings: LedgerSettings) -> bool:
    """Whether every row keeps every pair and leaves every logit as it was."""
    same = rows["max_logit_difference"] <= settings.tolerances.identity_logits
    return bool(len(rows)) and bool(((rows["density"] == 1.0) & same).all())


@rule("table7.{model}.k3.{column}", "table7.{model}.k4.{column}")
def dense_rows(
    claim: Claim, results: Results, settings: LedgerSettings, model: str, column: str
) -> Outcome | None:
    """k = 3 and k = 4 of K = 4 keep every pair: what the paper reports must then be the
    pretrained model's.
    """
    rows = hard(results, claim.keys["k"])
    if rows.empty:
        return None
    row = rows.iloc[0]
    known = facts(row, results, settings)
    if not identity(rows, settings):
        worst = (
            f"density {rows['density'].min():.4f}, logits differ by "
            f"{rows['max_logit_difference'].max():.3g}"
        )
        return Outcome(
            NOT_REPRODUCED,
            f"our k = {claim.keys['k']} of K = 4 is not the pretrained model: {worst}",
            **known,
        )
    ours = {"ppl": float(row["ppl"]), "delta": 0.0, "pairs_retained": 100.0, "speedup": 1.0}[column]
    expected = {"delta": 0.0, "pairs_retained": 100.0, "speedup": 1.0}.get(column)
    measured = f"of {len(rows)} settings: density 1.0, no logit changes"
    if column == "speedup":
        measured += "; not a timing, the bound by pairs kept"
    if column == "ppl" and table7_row(claim)["delta"] != 0:
        why = (
            f"{measured}; so it must equal the paper's pretrained 42.8, which "
            f"{claim.paper} does not"
        )
        return Outcome(NOT_REPRODUCED, why, ours=ours, **known)
    if expected is not None and float(claim.paper) != expected:
        why = f"{measured}; so the figure must be {expected:g}, the paper has {claim.paper}"
        return Outcome(NOT_REPRODUCED, why, ours=ours, **known)
    return Outcome(ARITHMETIC, f"nothing is masked ({measured})", ours=ours, **known)


@rule("table2.notes.every-scale.topk3", "audit.1")
def top3_is_everything(claim: Claim, results: Results, settings: LedgerSettings) -> Outcome | None:
    """Top-3 of 4 groups is the pretrained model: density 1 and not one logit changed."""
    rows = hard(results, 3)
    if rows.empty:
        return None
    known = facts(rows.iloc[0], results, settings)
    worst = float(rows["max_logit_difference"].max())
    if not identity(rows, settings):
        why = f"hard top-3 of 4 differs: density {rows['density'].min():.4f}, logits by {worst:.3g}"
        return Outcome(NOT_REPRODUCED, why, ours=worst, **known)
    why = (
        "hard top-3 of 4 keeps every pair (density 1.0) and changes no logit in "
        f"{len(rows)} settings: two 3-subsets "
        "of 4 always meet, so the equality says nothing about the routing"
    )
    return Outcome(ARITHMETIC, why, ours=worst, **known)


@rule("long_context.{row}.ppl_topk3")
def long_context_top3(
    claim: Claim, results: Results, settings: LedgerSettings, row: str
) -> Outcome | None:
    """The same identity at longer contexts, held against the paper's own full-attention figure."""
    rows = hard(results, 3)
    if rows.empty or not identity(rows, settings):
        return None
    known = facts(rows.iloc[0], results, settings)
    full = next(
        r["ppl_full"]
        for r in table("long_context")["rows"]
        if r["context"] == claim.keys["context"]
    )
    if float(claim.paper) == float(full):
        return Outcome(
            ARITHMETIC, f"top-3 of 4 masks nothing, so it equals full attention ({full})", **known
        )
    why = (
        f"top-3 of 4 masks nothing, so it must equal the paper's full attention, {full}; "
        f"it is {claim.paper}"
    )
    return Outcome(NOT_REPRODUCED, why, **known)
