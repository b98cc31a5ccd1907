"""Rules of the pairs that masks of four groups keep (Table 7, audit points 1 and 2): from k = 3 on
two choices always meet, so that nothing is masked; the others bound a speed-up.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from analysis import scope
from analysis.paper import Claim, printed
from analysis.results import Results
from analysis.rows import need, only, row_of
from analysis.rules.registry import COUNTED, Outcome, Verdict, facts, rule
from analysis.rules.speed import timing
from analysis.rules.table7 import GROUPS, hard, paper_way, table7_row
from analysis.words import plural
from experiments.settings import Tolerances

HEADS = {"gpt2-124m": 12, "mistral-7b": 32}  # of the models of Table 7
REFUTED = "a mask with k = 3 or 4 of K = 4 that drops a pair or changes the loss"


def timed(results: Results, top_k: int, heads: int | None = None) -> pd.DataFrame:
    """Timings of K = 4 with this k by length; ``heads``: only of as many, on a GPU, of the paper's
    own calls where these were timed."""
    frame = only(results.speed, K=GROUPS, k=top_k, direction="forward")
    ours = only(frame, method="ours", probe="symmetric").sort_values("length")
    if heads is None:
        return ours
    own, ours = (only(each, device="cuda", heads=heads).sort_values("length")
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
    frame = only(results.speed, device="cuda", method="paper_k1", direction="forward")
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


@rule("audit.2", refuted="a mask of two of four groups whose pairs, or whose timing at the longest "
      "length, allow the paper's 2x")  # fmt: skip
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
    fast = not clock.empty and clock["speedup"].iloc[-1] >= claimed
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
    return (f"{plural(len(rows), 'reading')}: density {rows['density'].min():.4f}, "
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
