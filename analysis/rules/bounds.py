"""Rules of the speed-up that the pairs kept allow (Table 7, audit point 2)."""

from __future__ import annotations

import pandas as pd

from analysis.paper import Claim, printed
from analysis.results import Results
from analysis.rows import need, only
from analysis.rules.registry import COUNTED, Outcome, Verdict, facts, rule
from analysis.rules.speed import GPU_COMMAND
from analysis.rules.table7 import GROUPS, paper_way, table7_row
from experiments.settings import Tolerances

HEADS = {"gpt2-124m": 12, "mistral-7b": 32}  # of the models of Table 7


def timed(results: Results, top_k: int, heads: int | None = None) -> pd.DataFrame:
    """The timings of K = 4 with this k by length.

    Args:
        heads: only of as many heads, on a GPU.
    """
    frame = only(results.speed, K=GROUPS, k=top_k, method="ours", direction="forward",
                 probe="symmetric")  # fmt: skip
    if heads is not None:
        frame = only(frame[frame["device"] != "cpu"], heads=heads)
    return frame.sort_values("length")


def said(frame: pd.DataFrame) -> str:
    """The measured speed-ups in words, each with what its pairs allow."""
    if frame.empty:
        return "; K = 4 with this k was not timed"
    told = ", ".join(f"{row['speedup']:.2f}x at {int(row['length']):,} ({row['bound']:.2f}x)"
                     for _, row in frame.iterrows())  # fmt: skip
    above = (frame["speedup"] > frame["bound"]).any()
    words = "; above its bound our kernel is faster, pair for pair, than that of full attention"
    return (f"; measured on {frame['hardware'].iloc[-1]}, by tokens (and what its pairs allow): "
            f"{told}{words if above else ''}")  # fmt: skip


@rule("table7.{model}.k1.speedup", "table7.{model}.k2.speedup",
      refuted="a measured speed-up below the paper's by more than its limit")  # fmt: skip
def table7_speedup(claim: Claim, results: Results, limits: Tolerances) -> Outcome:
    """The pairs that stay bound the speed-up: 1 / density, the paper's own percentage. Within the
    bound, a timing decides."""
    percent = table7_row(claim)["pairs_retained"]
    most, paper = 100 / (percent - 0.5), claim.figure  # the percentage is rounded
    why = (f"{percent}% of pairs allow at most {most:.2f}x at the speed of a kernel that full "
           "attention has too, as the paper's two calls do")  # fmt: skip
    if paper > most * (1 + limits.rounding):
        why = f"above the bound of its own pairs: {why}{said(timed(results, claim.keys['k']))}"
        known = {"ours": most, "evidence": "analysis/paper.yaml", **COUNTED}
        return Outcome(Verdict.CONTRADICTS, why, **known)
    frame = need(timed(results, claim.keys["k"], HEADS[claim.keys["model"]]))
    row = frame.iloc[-1]
    known = {
        "ours": float(row["speedup"]), "n": int(row["repetitions"]), "evidence": row["evidence"],
        "command": GPU_COMMAND, "scale": f"{row['hardware']}; random tensors",
    }  # fmt: skip
    why += said(frame)
    if row["speedup"] < paper * (1 - limits.speedup):
        return Outcome(Verdict.NOT_REPRODUCED, f"slower than the paper says: {why}", **known)
    near = row["speedup"] <= paper * (1 + limits.speedup)
    return Outcome(Verdict.DIRECTION if near else Verdict.INCONCLUSIVE, why, **known)


@rule("audit.2", refuted="a mask of two of four groups whose pairs, or whose timing, allow the "
      "paper's 2x")  # fmt: skip
def top2_bound(results: Results) -> Outcome:
    """Density of hard top-2 of 4, the bound that it implies, and the measured ratio where there
    is one."""
    row, clock = paper_way(results, 2), timed(results, 2)
    bound = 1 / float(row["density"])
    theirs = printed("table7", k=2)
    claimed = min(float(r["speedup"]) for r in theirs)
    bounds = ", ".join(f"{r['pairs_retained']}% -> {100 / r['pairs_retained']:.2f}x"
                       for r in theirs)  # fmt: skip
    why = (f"top-2 of 4 keeps {row['density']:.1%} of pairs: at most {bound:.2f}x with the kernel "
           f"that full attention has too; the paper's own: {bounds}{said(clock)}")  # fmt: skip
    fast = not clock.empty and clock["speedup"].iloc[-1] >= claimed
    verdict = Verdict.NOT_REPRODUCED if fast or bound >= claimed else Verdict.ARITHMETIC
    return Outcome(verdict, why, ours=bound, **facts(row, results))
