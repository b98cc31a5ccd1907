"""Rule of audit point 5: does a suffix change earlier assignments, and what does causality cost."""

from __future__ import annotations

from typing import Any

import pandas as pd

from analysis import scope
from analysis.paper import Claim
from analysis.results import Results
from analysis.rules.registry import DIRECTION, INCONCLUSIVE, NOT_REPRODUCED, Outcome, rule
from analysis.settings import LedgerSettings


def _changed(row: pd.Series) -> str:
    text = f"{row['variant']}, {row['balance']}: {row['changed']:.2%}"
    if pd.notna(row.get("changed_low")):
        text += f" ({row['changed_low']:.2%} to {row['changed_high']:.2%})"
    return text


def _said(sinkhorn: pd.DataFrame, causal: pd.DataFrame) -> str:
    """Every share that is not zero, and whether the causal balance has one."""
    moved, still = causal[causal["changed"] > 0], causal[causal["changed"] == 0]
    parts = [_changed(row) for _, row in pd.concat([sinkhorn, moved]).iterrows()]
    if len(still):
        where = "elsewhere none" if len(moved) else "none"
        parts.append(f"{' and '.join(dict.fromkeys(still['balance']))}: {where}")
    return "; ".join(parts)


def _cost(frame: pd.DataFrame) -> str:
    """What each balance costs at equal density, in words; empty where it was not measured."""
    if "delta" not in frame:
        return ""
    said = [
        f"{row['variant']}, {row['balance']}: {row['delta']:+.1%} ({row['delta_low']:+.1%} to "
        f"{row['delta_high']:+.1%}) at density {row['density']:.3f}"
        for row in frame.dropna(subset="delta").to_dict("records")
    ]
    return f" Perplexity under the hard mask against pretrained: {'; '.join(said)}."


def _facts(row: pd.Series, results: Results, settings: LedgerSettings) -> dict[str, Any]:
    count = row.get("changed_n")
    cell = row["cell"] or None
    run = results.run("leak", cell)
    return {
        "ours": float(row["changed"]),
        "low": float(row.get("changed_low", float("nan"))),
        "high": float(row.get("changed_high", float("nan"))),
        "n": None if count is None or pd.isna(count) else int(count),
        "evidence": f"results/leak/{cell + '/' if cell else ''}metrics.json",
        "command": run.get("command")
        or f"python -m experiments.stages.leak{' --trial ' + cell if cell else ''}",
        "scale": scope.describe(run, settings.scale, cell),
    }


@rule("audit.5")
def suffix_changes_the_past(
    claim: Claim, results: Results, settings: LedgerSettings
) -> Outcome | None:
    """Share of earlier assignments that a new suffix changes: Sinkhorn against the causal
    balance; our figure is the first variant's, the others stand in the text.
    """
    frame = results.leak
    if frame.empty or "changed" not in frame:
        return None
    sinkhorn = frame[frame["balance"] == "sinkhorn"]
    causal = frame[frame["balance"] == "causal"]
    if sinkhorn.empty or causal.empty:
        return None
    limit, known = settings.tolerances.leak_share, _facts(sinkhorn.iloc[0], results, settings)
    low = sinkhorn["changed_low"] if "changed_low" in sinkhorn else sinkhorn["changed"]
    why = f"Earlier assignments changed - {_said(sinkhorn, causal)}.{_cost(frame)}"
    if (causal["changed"] > limit).any():
        return Outcome(NOT_REPRODUCED, f"The causal balance changes the past too. {why}", **known)
    if (low > limit).all():
        why = f"Sinkhorn over the sequence leaks, the causal balance does not. {why}"
        return Outcome(DIRECTION, why, **known)
    if (sinkhorn["changed"] <= limit).all():
        return Outcome(NOT_REPRODUCED, f"Sinkhorn changes nothing either. {why}", **known)
    return Outcome(INCONCLUSIVE, f"The interval reaches the limit of {limit:.1%}. {why}", **known)
