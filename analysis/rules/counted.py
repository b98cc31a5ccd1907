"""Rules of what is counted: figures that follow from shapes, the paper's figures held against each
other (audit points 7 and 12), the exactness of its two calls as we wrote them down (Appendix D),
assignments that a suffix changes (5). And the pairs that masks of four groups keep (Table 7): from
k = 3 on two choices always meet, so that nothing is masked; the others bound a speed-up (1, 2).
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from analysis import scope, tables
from analysis.paper import Claim, magnitude, printed, theirs
from analysis.results import Results
from analysis.rows import Missing, need, only, row_of
from analysis.rules.registry import COUNTED, Outcome, Verdict, agree, facts, interval, rule
from analysis.rules.speed import timing
from analysis.rules.table7 import GROUPS, hard, paper_way, table7_row
from experiments.settings import Tolerances

ABLATED = "gpt2-124m"  # the model of Table 9
HEADS = {"gpt2-124m": 12, "mistral-7b": 32}  # of the models of Table 7
REFUTED = "a mask with k = 3 or 4 of K = 4 that drops a pair or changes the loss"


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
    return "; ".join(
        f"{row.cell}, {row.balance}: {row.changed:.2%} "
        f"({row.changed_low:.2%} to {row.changed_high:.2%})" if row.changed else
        f"{row.cell}, {row.balance}: none" for row in frame.itertuples()
    )  # fmt: skip


@rule("audit.5", refuted="no more assignments change under Sinkhorn than the limit leak_share, "
      "or more than that under the causal balance")  # fmt: skip
def suffix_changes_the_past(results: Results, limits: Tolerances) -> Outcome:
    """Share of earlier assignments that a new suffix changes: Sinkhorn against the causal balance;
    our figure is the first cell's, the others stand in the text."""
    sinkhorn, causal = (need(only(tables.leak(results), balance=name))
                        for name in ("sinkhorn", "causal"))  # fmt: skip
    first, limit = sinkhorn.iloc[0], limits.leak_share
    known = interval(first, "changed") | facts(first, results)
    why = f"Earlier assignments changed - {_leaked(pd.concat([sinkhorn, causal]))}"
    verdict, said = Verdict.INCONCLUSIVE, f"The interval reaches the limit of {limit:.1%}"
    if (causal["changed"] > limit).any():
        verdict, said = Verdict.NOT_REPRODUCED, "The causal balance changes the past too"
    elif (sinkhorn["changed_low"] > limit).all():
        verdict, said = Verdict.DIRECTION, "Sinkhorn leaks, the causal balance does not"
    elif (sinkhorn["changed"] <= limit).all():
        verdict, said = Verdict.NOT_REPRODUCED, "Sinkhorn changes nothing either"
    return Outcome(verdict, f"{said}. {why}", **known)


def timed(results: Results, top_k: int, heads: int | None = None) -> pd.DataFrame:
    """Timings of K = 4 with this k by length; ``heads``: only of as many, on a GPU, of the paper's
    own calls where these were timed."""
    frame = only(results.speed, K=GROUPS, k=top_k, direction="forward")
    ours = only(frame, method="ours", probe="symmetric").sort_values("length")
    if heads is None:
        return ours
    own, ours = (only(each[each["device"] != "cpu"], heads=heads).sort_values("length")
                 for each in (only(frame, method="paper_k1"), ours))  # fmt: skip
    return own if len(own) else ours


def measured(frame: pd.DataFrame) -> str:
    """The measured speed-ups in words, each with what its pairs allow."""
    if frame.empty:
        return "; K = 4 with this k was not timed"
    told = ", ".join(f"{row['speedup']:.2f}x at {int(row['length']):,} ({row['bound']:.2f}x)"
                     for _, row in frame.iterrows())  # fmt: skip
    above = (frame["speedup"] > frame["bound"]).any()
    whose = "our kernel" if frame["method"].iloc[0] == "ours" else "the paper's way"
    words = f"; above its bound {whose} is faster, pair for pair, than full attention"
    return (f"; measured on {frame['hardware'].iloc[-1]}, by tokens (and what its pairs allow): "
            f"{told}{words if above else ''}")  # fmt: skip


def allowed(percent: float) -> float:
    """The greatest speed-up of so many pairs; the percentage is rounded."""
    return 100 / (percent - 0.5)


def beyond(results: Results) -> str:
    """How far the paper's two calls pass what their pairs allow, on a GPU, in words."""
    frame = only(results.speed, method="paper_k1", direction="forward")
    frame = frame[frame["device"] != "cpu"]
    if frame.empty:
        return ""
    most = float((frame["speedup"] / frame["bound"]).max()) - 1
    return f"; with one group the paper's two calls pass their bound by {max(most, 0):.0%} at most"


@rule("table7.{model}.k1.speedup", "table7.{model}.k2.speedup",
      refuted="a measured speed-up below the paper's by more than its limit")  # fmt: skip
def table7_speedup(claim: Claim, results: Results, limits: Tolerances) -> Outcome:
    """Pairs kept bound the speed-up: 1 / density. Within the bound, a timing decides."""
    percent = table7_row(claim)["pairs_retained"]
    most, paper = allowed(percent), claim.figure
    why = (f"{percent}% of pairs allow at most {most:.2f}x at the speed of a kernel that full "
           "attention has too, as the paper's two calls do")  # fmt: skip
    if paper > most * (1 + limits.rounding):
        why = (f"above the bound of its own pairs: {why}{beyond(results)}"
               f"{measured(timed(results, claim.keys['k']))}")  # fmt: skip
        known = {"ours": most, "evidence": "analysis/paper.yaml", **COUNTED}
        return Outcome(Verdict.CONTRADICTS, why, **known)
    frame = need(timed(results, claim.keys["k"], HEADS[claim.keys["model"]]))
    row = frame.iloc[-1]
    known = {"ours": float(row["speedup"])} | timing(row, f"{row['hardware']}; random tensors")
    why += measured(frame)
    if row["speedup"] < paper * (1 - limits.speedup):
        return Outcome(Verdict.NOT_REPRODUCED, f"slower than the paper says: {why}", **known)
    short = row_of(frame, length=claim.setting["context"])
    if short is not None and short["speedup"] < paper * (1 - limits.speedup):
        why = (f"{row['speedup']:.2f}x at {int(row['length']):,} tokens, {short['speedup']:.2f}x "
               f"at {int(short['length']):,}, the length of its perplexities; the table names none "
               f"for its speed-ups: {why}")  # fmt: skip
        return Outcome(Verdict.INCONCLUSIVE, why, **known)
    near = row["speedup"] <= paper * (1 + limits.speedup)
    return Outcome(Verdict.DIRECTION if near else Verdict.INCONCLUSIVE, why, **known)


@rule("audit.2", refuted="a mask of two of four groups whose pairs, or whose timing, allow the "
      "paper's 2x")  # fmt: skip
def top2_bound(results: Results) -> Outcome:
    """Density of hard top-2 of 4, the bound that it implies, and the measured ratio."""
    row, clock = paper_way(results, 2), timed(results, 2)
    bound = 1 / float(row["density"])
    theirs = printed("table7", k=2)
    claimed = min(float(r["speedup"]) for r in theirs)
    bounds = ", ".join(f"{r['pairs_retained']}% -> {allowed(r['pairs_retained']):.2f}x"
                       for r in theirs)  # fmt: skip
    why = (f"top-2 of 4 keeps {row['density']:.1%} of pairs: at most {bound:.2f}x with the kernel "
           f"that full attention has too; the paper's own: {bounds}{measured(clock)}")  # fmt: skip
    fast = bool((clock["speedup"] >= claimed).any())
    verdict = Verdict.NOT_REPRODUCED if fast or bound >= claimed else Verdict.ARITHMETIC
    return Outcome(verdict, why, ours=bound, unit="times as fast", **facts(row, results))


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


@rule("table7.{model}.k3.{column}", "table7.{model}.k4.{column}", refuted=REFUTED)
def dense_rows(claim: Claim, results: Results, limits: Tolerances, column: str) -> Outcome:
    """k = 3 and k = 4 of K = 4 keep every pair: the paper's rows must be its pretrained model's."""
    rows = need(hard(results, claim.keys["k"]))
    row, theirs = rows.iloc[0], table7_row(claim)
    seen = {
        "ppl": float(row["ppl"]), "delta": float(row["ppl"] - row["base_ppl"]),
        "pairs_retained": 100 * float(row["distant_density"]), "speedup": 1 / float(row["density"]),
    }  # fmt: skip
    # Another model's perplexity says nothing beside the paper's.
    other = column == "ppl" and not scope.same_model(claim, str(row["model"]))
    known = {"ours": None if other else seen[column], **facts(row, results)}
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
    own = {} if longer else {"ours": nats(rows), "unit": "nats a token"}
    known = facts(rows.iloc[0], results) | own
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
