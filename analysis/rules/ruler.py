"""Rules of our own statement about long-context tasks."""

from __future__ import annotations

from analysis import ruler
from analysis.paper import Claim
from analysis.results import Results
from analysis.rules.headline import judged
from analysis.rules.registry import Outcome, facts, rule
from analysis.settings import LedgerSettings


@rule("ours.ruler", refuted="at one length an interval of the answers lost wholly above same_score")
def answers_found(claim: Claim, results: Results, settings: LedgerSettings) -> Outcome | None:
    """Answers beside heavy hitters against full attention, judged by the worst of all lengths."""
    frame = ruler.table(results)
    own = frame[(frame["role"] == "heavy") & (frame["task"] == ruler.EVERY)]
    if own.empty:
        return None
    row, limit = own.sort_values("points").iloc[0], settings.tolerances.same_score
    why = "; ".join(
        f"{each['points']:+.1f} points ({each['points_low']:.1f} to {each['points_high']:.1f}) of "
        f"{each['base_found']:.0f}% at {each['length']:,} tokens" for _, each in own.iterrows()
    )  # fmt: skip
    low, high = float(row["points_low"]), float(row["points_high"])
    known = facts(row.rename({"questions": "documents"}), results)
    known |= {"ours": float(row["points"]), "low": low, "high": high}
    verdict = judged(-high, -low, limit)
    return Outcome(verdict, f"{why} (limit -{limit:.0f})", **known, same_setting=True)
