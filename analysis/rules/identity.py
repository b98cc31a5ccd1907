"""Rules of what masks nothing: from k = 3 of K = 4 on two choices always meet (Table 7, its
long-context echo, audit point 1)."""

from __future__ import annotations

import numpy as np
import pandas as pd

from analysis import scope
from analysis.paper import Claim, printed
from analysis.results import Results
from analysis.rows import need
from analysis.rules.registry import Outcome, Verdict, facts, rule
from analysis.rules.table7 import hard, table7_row
from experiments.settings import Tolerances


def nats(rows: pd.DataFrame) -> float:
    """The greatest difference of loss a token from the pretrained model."""
    return float(np.log1p(rows["change"]).abs().max())


def identity(rows: pd.DataFrame, limits: Tolerances) -> bool:
    """Whether every row keeps every pair and leaves the loss as it was."""
    same = nats(rows) <= limits.identity_nats
    return bool(same and (rows["density"] == 1.0).all())


def said(rows: pd.DataFrame) -> str:
    """What was seen of masks of one k, in words."""
    return (f"{len(rows)} reading{'s' * (len(rows) > 1)}: density {rows['density'].min():.4f}, "
            f"loss a token differs by at most {nats(rows):.2g}")  # fmt: skip


REFUTED = "a mask with k = 3 or 4 of K = 4 that drops a pair or changes the loss"


@rule("table7.{model}.k3.{column}", "table7.{model}.k4.{column}", refuted=REFUTED)
def dense_rows(claim: Claim, results: Results, limits: Tolerances, column: str) -> Outcome:
    """k = 3 and k = 4 of K = 4 keep every pair, whatever the model: what the paper reports must
    then be its pretrained model's."""
    rows = need(hard(results, claim.keys["k"]))
    row, theirs = rows.iloc[0], table7_row(claim)
    measured = {
        "ppl": float(row["ppl"]), "delta": float(row["ppl"] - row["base_ppl"]),
        "pairs_retained": 100 * float(row["distant_density"]), "speedup": 1 / float(row["density"]),
    }  # fmt: skip
    # Another model's perplexity says nothing beside the paper's.
    other = column == "ppl" and not scope.same_model(claim, str(row["model"]))
    known = {"ours": None if other else measured[column], **facts(row, results)}
    if not identity(rows, limits):
        why = f"our k = {claim.keys['k']} of K = 4 is not the pretrained model: {said(rows)}"
        return Outcome(Verdict.NOT_REPRODUCED, why, **known)
    # Of a perplexity the paper's own change against pretrained tells what it must be.
    expected = {"ppl": theirs["ppl"] - theirs["delta"], "delta": 0.0, "pairs_retained": 100.0,
                "speedup": 1.0}[column]  # fmt: skip
    why = f"nothing is masked ({said(rows)}"
    why += "; not a timing, the bound by pairs kept)" if column == "speedup" else ")"
    if abs(claim.figure - expected) > 1e-9:
        why += f"; so the figure must be {expected:g}, the paper has {claim.paper}"
        return Outcome(Verdict.CONTRADICTS, why, **known)
    return Outcome(Verdict.ARITHMETIC, why, **known)


@rule("table2.notes.every-scale.topk3", "audit.1", "long_context.{row}.ppl_topk3", refuted=REFUTED)
def top3_is_everything(claim: Claim, results: Results, limits: Tolerances) -> Outcome:
    """Top-3 of 4 groups is the pretrained model: density 1 and the same loss. At longer contexts
    the paper's figure is held against its own for full attention."""
    rows = need(hard(results, 3))
    longer = printed("long_context", context=claim.keys.get("context"))
    known = facts(rows.iloc[0], results) | ({} if longer else {"ours": nats(rows)})
    if not identity(rows, limits):
        return Outcome(Verdict.NOT_REPRODUCED, f"hard top-3 of 4 differs: {said(rows)}", **known)
    why = f"hard top-3 of 4 masks nothing ({said(rows)}): two 3-subsets of 4 always meet, so "
    if not longer:
        why += "the equality says nothing about the routing"
        return Outcome(Verdict.ARITHMETIC, why, **known)
    full = longer[0]["ppl_full"]
    why += f"the figure must be the paper's full attention's, {full}"
    if claim.figure == full:
        return Outcome(Verdict.ARITHMETIC, why, **known)
    return Outcome(Verdict.CONTRADICTS, f"{why}; it is {claim.paper}", **known)
