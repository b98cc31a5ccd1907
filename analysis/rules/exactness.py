"""Rules that read the exactness measurement (Appendix D): the paper's two calls, as we wrote them
down, against the dense definition."""

from __future__ import annotations

import pandas as pd

from analysis.paper import Claim
from analysis.results import Results
from analysis.rows import need, only
from analysis.rules.registry import Outcome, Verdict, rule
from experiments.settings import Tolerances


def _facts(frame: pd.DataFrame, results: Results) -> dict[str, object]:
    return {
        "n": len(frame), "evidence": frame["evidence"].iloc[0],
        "low": float(frame["output_cosine"].min()), "high": float(frame["output_cosine"].max()),
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
    """Merging by subtraction in log space: the paper does not say for which tensors 0.79 holds,
    so only direction."""
    frame = need(only(results.table("exactness"), method="subtraction"))
    middle, paper = float(frame["output_cosine"].median()), claim.figure
    why = f"median cosine of {len(frame)} cases {middle:.4f}, the paper has {paper}"
    known = {"ours": middle, **_facts(frame, results)}
    if middle >= limits.cosine:
        return Outcome(Verdict.NOT_REPRODUCED, f"subtraction is exact here: {why}", **known)
    near = abs(middle - paper) <= limits.subtraction_cosine
    note = "as far off as the paper says" if near else "inexact, though not by the paper's figure"
    return Outcome(Verdict.DIRECTION, f"{note}: {why}", **known)
