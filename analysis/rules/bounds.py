"""Rules of the speed-up that the pairs kept allow (Table 7, audit point 2)."""

from __future__ import annotations

from analysis.paper import Claim, table
from analysis.results import Results
from analysis.rules.registry import ARITHMETIC, INCONCLUSIVE, NOT_REPRODUCED, Outcome, rule
from analysis.rules.topk import GROUPS, facts, paper_way, table7_row
from analysis.settings import LedgerSettings


@rule("table7.{model}.k1.speedup", "table7.{model}.k2.speedup")
def table7_speedup(
    claim: Claim, results: Results, settings: LedgerSettings, model: str
) -> Outcome | None:
    """The pairs that stay bound the speed-up: 1 / density, the paper's own percentage first."""
    row = paper_way(results, claim.keys["k"], claim)
    if row is None:
        return None
    percent = table7_row(claim)["pairs_retained"]
    theirs, ours = 100 / (percent - 0.5), 1 / float(row["density"])  # the percentage is rounded
    known = facts(row, results, settings)
    why = (
        f"{percent}% of pairs allow at most {theirs:.2f}x with the kernel that full attention "
        f"has too, as the paper's two calls do; ours keep {row['density']:.1%}: at most {ours:.2f}x"
    )
    why += measured_ratio(results, claim.keys["k"])
    if float(claim.paper) > theirs * (1 + settings.tolerances.rounding):
        return Outcome(NOT_REPRODUCED, f"above the bound: {why}", ours=ours, **known)
    return Outcome(
        INCONCLUSIVE,
        f"within the bound of its pairs, not timed in this setting: {why}",
        ours=ours,
        **known,
    )


def measured_ratio(results: Results, top_k: int) -> str:
    """The measured speed-up of K = 4 with this k at the longest length, in words; empty where not
    timed.
    """
    frame = results.speed
    if frame.empty:
        return ""
    wanted = (frame["K"] == GROUPS) & (frame["k"] == top_k) & (frame["method"] == "ours")
    wanted &= (frame["direction"] == "forward") & (frame["probe"] == "symmetric")
    frame = frame[wanted]
    if frame.empty:
        return "; no timing of K = 4 with this k yet"
    row = frame.sort_values("length").iloc[-1]
    bound = 1 / row["density"] if row["density"] > 0 else float("nan")
    return (
        f"; measured {row['speedup']:.2f}x at {int(row['length'])} tokens on {row['hardware']} "
        f"(bound {bound:.2f}x there)"
    )


@rule("audit.2")
def top2_bound(claim: Claim, results: Results, settings: LedgerSettings) -> Outcome | None:
    """Density of hard top-2 of 4, the bound that it implies, and the measured ratio where there
    is one.
    """
    row = paper_way(results, 2, claim)
    if row is None:
        return None
    bound, known = 1 / float(row["density"]), facts(row, results, settings)
    theirs = [r for r in table("table7")["rows"] if r["k"] == 2]
    limits = ", ".join(
        f"{r['pairs_retained']}% -> {100 / r['pairs_retained']:.2f}x" for r in theirs
    )
    why = (
        f"top-2 of 4 keeps {row['density']:.1%} of pairs: at most {bound:.2f}x with the kernel "
        f"that full attention has too; the paper's own: {limits}"
    )
    why += measured_ratio(results, 2)
    claimed = min(float(r["speedup"]) for r in theirs)
    verdict = ARITHMETIC if bound < claimed else NOT_REPRODUCED
    return Outcome(verdict, why, ours=bound, **known)
