"""Rule of audit point 5: does a suffix change earlier assignments?"""

from __future__ import annotations

import pandas as pd

from analysis import tables
from analysis.results import Results
from analysis.rules.registry import Outcome, Verdict, facts, interval, rule
from experiments.settings import Tolerances


def _said(frame: pd.DataFrame) -> str:
    return "; ".join(
        f"{row.cell}, {row.balance}: {row.changed:.2%} "
        f"({row.changed_low:.2%} to {row.changed_high:.2%})" if row.changed else
        f"{row.cell}, {row.balance}: none" for row in frame.itertuples()
    )  # fmt: skip


@rule("audit.5", refuted="no more assignments change under Sinkhorn than the limit leak_share, "
      "or more than that under the causal balance")  # fmt: skip
def suffix_changes_the_past(results: Results, limits: Tolerances) -> Outcome | None:
    """Share of earlier assignments that a new suffix changes: Sinkhorn against the causal balance;
    our figure is the first cell's, the others stand in the text."""
    frame = tables.leak(results)
    if frame.empty:
        return None
    sinkhorn, causal = (frame[frame["balance"] == name] for name in ("sinkhorn", "causal"))
    if sinkhorn.empty or causal.empty:
        return None
    first, limit = sinkhorn.iloc[0], limits.leak_share
    known = interval(first, "changed") | facts(first, results)
    why = f"Earlier assignments changed - {_said(pd.concat([sinkhorn, causal]))}"
    if (causal["changed"] > limit).any():
        return Outcome(
            Verdict.NOT_REPRODUCED, f"The causal balance changes the past too. {why}", **known
        )
    if (sinkhorn["changed_low"] > limit).all():
        return Outcome(
            Verdict.DIRECTION, f"Sinkhorn leaks, the causal balance does not. {why}", **known
        )
    if (sinkhorn["changed"] <= limit).all():
        return Outcome(Verdict.NOT_REPRODUCED, f"Sinkhorn changes nothing either. {why}", **known)
    return Outcome(
        Verdict.INCONCLUSIVE, f"The interval reaches the limit of {limit:.1%}. {why}", **known
    )
