"""Rule of audit point 5: does a suffix change earlier assignments?"""

from __future__ import annotations

import pandas as pd

from analysis import tables
from analysis.results import Results
from analysis.rows import need, only
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
def suffix_changes_the_past(results: Results, limits: Tolerances) -> Outcome:
    """Share of earlier assignments that a new suffix changes: Sinkhorn against the causal balance;
    our figure is the first cell's, the others stand in the text."""
    sinkhorn, causal = (need(only(tables.leak(results), balance=name))
                        for name in ("sinkhorn", "causal"))  # fmt: skip
    first, limit = sinkhorn.iloc[0], limits.leak_share
    known = interval(first, "changed") | facts(first, results)
    why = f"Earlier assignments changed - {_said(pd.concat([sinkhorn, causal]))}"
    verdict, said = Verdict.INCONCLUSIVE, f"The interval reaches the limit of {limit:.1%}"
    if (causal["changed"] > limit).any():
        verdict, said = Verdict.NOT_REPRODUCED, "The causal balance changes the past too"
    elif (sinkhorn["changed_low"] > limit).all():
        verdict, said = Verdict.DIRECTION, "Sinkhorn leaks, the causal balance does not"
    elif (sinkhorn["changed"] <= limit).all():
        verdict, said = Verdict.NOT_REPRODUCED, "Sinkhorn changes nothing either"
    return Outcome(verdict, f"{said}. {why}", **known)
