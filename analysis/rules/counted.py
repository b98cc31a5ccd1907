"""Rules of what is counted: figures that follow from shapes, the paper's figures held against each
other (audit points 7 and 12), the exactness of its two calls as we wrote them down (Appendix D),
assignments that a suffix changes (5).
"""

from __future__ import annotations

import pandas as pd

from analysis import tables
from analysis.paper import Claim, magnitude, printed, theirs
from analysis.results import Results
from analysis.rows import Missing, need, only, row_of
from analysis.rules.registry import COUNTED, Outcome, Verdict, agree, rule
from analysis.rules.table7 import GROUPS
from analysis.words import ranged
from experiments.settings import Tolerances

ABLATED = "gpt2-124m"  # the model of Table 9


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
        least = least_retained(claim)
        if least > paper * (1 + limit):
            why += (f"; but with Table 9's largest of {GROUPS} groups it would be {least:.0f}% at "
                    "least")  # fmt: skip
            return Outcome(Verdict.INCONCLUSIVE, why, ours=ours, **known)
        return Outcome(Verdict.ARITHMETIC, f"{why}{untrained(claim)}", ours=ours, **known)
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


def least_retained(claim: Claim) -> float:
    """Percent of the pairs that one group a token keeps at least where the largest group is as full
    as Table 9 says of the same model; 0 where it says nothing."""
    if claim.column != "pairs_retained" or claim.model != ABLATED:
        return 0.0
    share = theirs("table9", "dominance_centroid", parameter="k", value=GROUPS) / 100
    return 100 * (share**2 + (1 - share) ** 2 / (GROUPS - 1))


def untrained(claim: Claim) -> str:
    """Words where the paper trains nothing, and yet prints less perplexity than pretrained."""
    ppl = {row["method"]: row["ppl"] for row in printed(claim.id.split(".")[0], trained_params=0)}
    own, base = ppl.get(claim.keys.get("method"), 0.0), ppl.get("pretrained", 0.0)
    return f"; yet its perplexity, {own}, lies below pretrained's {base}" if 0 < own < base else ""


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
    return Outcome(verdict, "; ".join(parts), ours=100 * worst, unit="percent more", n=len(parts),
                   **known)  # fmt: skip


@rule("audit.12", refuted="Focus level with the better LoRA, within rounding, or below it")
def confound(results: Results, limits: Tolerances) -> Outcome:
    """Focus in the paper's Table 3, against the pretrained and against the adapted model."""
    frame, known = _table(results, "confound")
    row = need(frame[frame["method"].str.startswith("focus")]).iloc[0]
    cost = float(row["against_adapted"])
    why = (f"{row['ppl']} is {row['against_pretrained']:+.1%} against the pretrained model and "
           f"{cost:+.1%} against full attention adapted on the same text by LoRA")  # fmt: skip
    verdict = Verdict.ARITHMETIC if cost > limits.rounding else Verdict.NOT_REPRODUCED
    return Outcome(verdict, why, ours=100 * cost, unit="percent more", **known)


def _facts(frame: pd.DataFrame, results: Results) -> dict[str, object]:
    return {
        "n": len(frame), "evidence": frame["evidence"].iloc[0],
        "command": "python -m experiments.stages.exactness",
        "scale": f"{results.scale}; random tensors, no model",
    }  # fmt: skip


@rule("decomposition.log-sum-exp.cosine", refuted="a case below the cosine that prints as 1.0000, "
      "or over its limit of error")  # fmt: skip
def log_sum_exp(results: Results, limits: Tolerances) -> Outcome:
    """Two calls merged by log-sum-exp. The code is ours, since the paper's is not public, so it is
    the identity that holds or does not, not the paper's implementation."""
    frame = need(only(results.table("exactness"), method="log_sum_exp"))
    worst, failed = float(frame["output_cosine"].min()), int((~frame["passed"].astype(bool)).sum())
    why = (
        f"two calls as we wrote them down: worst cosine of {len(frame)} cases {worst:.7f}, worst "
        f"relative error of an output {frame['output_error'].max():.2g}, {failed} over their limit"
    )
    good = worst >= limits.cosine and failed == 0
    verdict = Verdict.DIRECTION if good else Verdict.NOT_REPRODUCED
    return Outcome(verdict, why, ours=worst, **_facts(frame, results))


@rule("decomposition.subtraction.cosine", refuted="a median cosine that prints as 1.0000")
def subtraction(claim: Claim, results: Results, limits: Tolerances) -> Outcome:
    """Merging by subtraction: the paper does not say for which tensors 0.79 holds."""
    frame = need(only(results.table("exactness"), method="subtraction"))
    middle, paper = float(frame["output_cosine"].median()), claim.figure
    why = f"median cosine of {len(frame)} cases {middle:.4f}, the paper has {paper}"
    known = {"ours": middle, **_facts(frame, results)}
    if middle >= limits.cosine:
        return Outcome(Verdict.NOT_REPRODUCED, f"subtraction is exact here: {why}", **known)
    near = abs(middle - paper) <= limits.subtraction_cosine
    note = "as far off as the paper says" if near else "inexact, though not by the paper's figure"
    return Outcome(Verdict.DIRECTION, f"{note}: {why}", **known)


def _leaked(frame: pd.DataFrame) -> str:
    return "; ".join(f"{row['cell']}, {row['balance']}: "
                     f"{ranged(row, 'changed', '.2%') if row['changed'] else 'none'}"
                     for _, row in frame.iterrows())  # fmt: skip


@rule("audit.5", refuted="no more assignments change under Sinkhorn than the limit leak_share, "
      "or more than that under the causal balance")  # fmt: skip
def suffix_changes_the_past(results: Results, limits: Tolerances) -> Outcome:
    """Share of earlier assignments that a new suffix changes: Sinkhorn against the causal balance;
    our figure is the first cell's, the others stand in the text."""
    sinkhorn, causal = (need(only(tables.leak(results), balance=name))
                        for name in ("sinkhorn", "causal"))  # fmt: skip
    first, limit = sinkhorn.iloc[0], limits.leak_share
    why = f"Earlier assignments changed - {_leaked(pd.concat([sinkhorn, causal]))}"
    verdict, said = Verdict.INCONCLUSIVE, f"The interval reaches the limit of {limit:.1%}"
    if (causal["changed"] > limit).any():
        verdict, said = Verdict.NOT_REPRODUCED, "The causal balance changes the past too"
    elif (sinkhorn["changed_low"] > limit).all():
        verdict, said = Verdict.DIRECTION, "Sinkhorn leaks, the causal balance does not"
    elif (sinkhorn["changed"] <= limit).all():
        verdict, said = Verdict.NOT_REPRODUCED, "Sinkhorn changes nothing either"
    return Outcome.of(verdict, f"{said}. {why}", first, results, "changed")
