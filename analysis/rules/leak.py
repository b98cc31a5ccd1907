"""Rule of audit point 5: does a suffix change earlier assignments, and what does causal balance
cost.
"""

from __future__ import annotations

import pandas as pd

from analysis import scope
from analysis.paper import Claim
from analysis.results import Results
from analysis.rules.registry import DIRECTION, INCONCLUSIVE, NOT_REPRODUCED, Outcome, rule
from analysis.settings import LedgerSettings


def pairs(frame: pd.DataFrame) -> pd.DataFrame:
    """One row a variant that has both balances: Sinkhorn's columns beside the causal ones
    (`_causal`).
    """
    if frame.empty:
        return frame
    sinkhorn = frame[frame["balance"] == "sinkhorn"]
    causal = frame[frame["balance"] == "causal"]
    both = sinkhorn.merge(causal, on="variant", suffixes=("", "_causal"))
    return both.sort_values("variant", kind="stable").reset_index(drop=True)


def _said(row: pd.Series) -> str:
    text = f"{row['variant']}: {row['changed']:.1%}"
    if pd.notna(row.get("changed_low")):
        text += f" ({row['changed_low']:.1%} to {row['changed_high']:.1%})"
    text += f" with Sinkhorn, {row['changed_causal']:.1%} with causal balance"
    if pd.notna(row.get("ppl")) and pd.notna(row.get("ppl_causal")):
        text += f"; perplexity {row['ppl']:.2f} against {row['ppl_causal']:.2f} causal"
    return text


@rule("audit.5")
def suffix_changes_the_past(
    claim: Claim, results: Results, settings: LedgerSettings
) -> Outcome | None:
    """Share of earlier assignments that a new suffix changes, per variant; Sinkhorn against
    causal.
    """
    both = pairs(results.leak)
    if both.empty or "changed" not in both:
        return None
    limit, row = settings.tolerances.leak_share, both.iloc[0]
    low = both["changed_low"] if "changed_low" in both else both["changed"]
    count = row.get("changed_n", row.get("n"))
    known = {
        "ours": float(row["changed"]),
        "low": float(low.iloc[0]),
        "high": float(row.get("changed_high", row["changed"])),
        "n": None if count is None or pd.isna(count) else int(count),
        "evidence": "results/leak/metrics.json",
        "command": "python -m experiments.stages.leak",
        "scale": scope.describe(results.run("leak"), settings.scale),
    }
    why = ". ".join(_said(r) for _, r in both.iterrows())
    if (both["changed_causal"] > limit).any():
        return Outcome(
            NOT_REPRODUCED, f"the causal balance changes earlier assignments too: {why}", **known
        )
    if (low > limit).all():
        return Outcome(
            DIRECTION, f"Sinkhorn over the sequence leaks, causal balance does not. {why}", **known
        )
    if (both["changed"] <= limit).all():
        return Outcome(
            NOT_REPRODUCED, f"no earlier assignment changes with Sinkhorn either. {why}", **known
        )
    return Outcome(INCONCLUSIVE, f"the interval reaches the limit of {limit:.1%}. {why}", **known)
