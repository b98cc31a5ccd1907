"""Rules that read the exactness stage (Appendix D): the two calls against the dense definition."""

from __future__ import annotations

import pandas as pd

from analysis.paper import Claim
from analysis.results import Results
from analysis.rules.registry import DIRECTION, NOT_REPRODUCED, REPRODUCED, Outcome, rule
from analysis.settings import LedgerSettings

COMMAND = "python -m experiments.stages.exactness"


def cases(results: Results, method: str) -> pd.DataFrame:
    """Cases of one method."""
    frame = results.exactness
    return frame[frame["method"] == method]


def _span(frame: pd.DataFrame) -> str:
    parts = [
        f"{name} in {{{', '.join(str(v) for v in sorted(frame[name].unique()))}}}"
        for name in ("K", "k", "window", "sinks")
    ]
    return "; ".join(parts)


@rule("decomposition.log-sum-exp.cosine")
def exact(claim: Claim, results: Results, settings: LedgerSettings) -> Outcome | None:
    """The worst cosine over all cases; an operator's identity has no model scale, so plain
    verdicts are possible.
    """
    frame = cases(results, "log_sum_exp")
    if frame.empty:
        return None
    worst, failed = float(frame["output_cosine"].min()), int((~frame["passed"].astype(bool)).sum())
    error = float(frame["output_error"].max())
    why = (
        f"worst cosine of {len(frame)} cases {worst:.7f}, worst relative error of an "
        f"output {error:.2g}, "
        f"{failed} cases over their limit ({_span(frame)})"
    )
    good = worst >= settings.tolerances.cosine and failed == 0
    return Outcome(
        REPRODUCED if good else NOT_REPRODUCED,
        why,
        ours=worst,
        low=worst,
        high=float(frame["output_cosine"].max()),
        n=len(frame),
        evidence=frame["evidence"].iloc[0],
        command=COMMAND,
        scale=f"{settings.scale}; random tensors, no model",
        same_setting=True,
    )


@rule("decomposition.subtraction.cosine")
def subtraction(claim: Claim, results: Results, settings: LedgerSettings) -> Outcome | None:
    """Merging by subtraction in log space: the paper does not say for which tensors 0.79 holds,
    so only direction.
    """
    frame = cases(results, "subtraction")
    if frame.empty:
        return None
    ours = frame["output_cosine"]
    middle, paper = float(ours.median()), float(claim.paper)
    known = {
        "ours": middle,
        "low": float(ours.min()),
        "high": float(ours.max()),
        "n": len(frame),
        "evidence": frame["evidence"].iloc[0],
        "command": COMMAND,
        "scale": f"{settings.scale}; random tensors, no model",
    }
    why = (
        f"median cosine of {len(frame)} cases {middle:.4f} ({ours.min():.4f} to "
        f"{ours.max():.4f}), the paper has {paper}"
    )
    if middle >= settings.tolerances.cosine:
        return Outcome(NOT_REPRODUCED, f"subtraction is exact here: {why}", **known)
    near = abs(middle - paper) <= settings.tolerances.subtraction_cosine
    note = (
        "as far off as the paper says"
        if near
        else "inexact, though not by the paper's figure, whose tensors are not stated"
    )
    return Outcome(DIRECTION, f"{note}: {why}", **known)
