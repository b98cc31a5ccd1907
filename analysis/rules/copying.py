"""Rule of audit point 11: is what a text says earlier still found where perplexity hardly moves?"""

from __future__ import annotations

import pandas as pd

from analysis import scope
from analysis.paper import Claim
from analysis.results import Results
from analysis.rules.registry import DIRECTION, INCONCLUSIVE, NOT_REPRODUCED, Outcome, rule
from analysis.settings import LedgerSettings


@rule("audit.11")
def copying_behind_perplexity(
    claim: Claim, results: Results, settings: LedgerSettings
) -> Outcome | None:
    """Masks within `same_ppl` of the pretrained perplexity on held-out books (the recipe stage's),
    each held against `copied`: one that does not copy bears the doubt out."""
    if results.copying.empty:
        return None
    own, limit = close(results, settings.tolerances.same_ppl), settings.tolerances.copied
    near = f"within {settings.tolerances.same_ppl:.0%} of the pretrained perplexity"
    if own.empty or (own["gain"] <= 0).any():
        missing = f"no mask {near}" if own.empty else "the pretrained model itself copies nothing"
        return Outcome(INCONCLUSIVE, f"Nothing to judge from: {missing}",
                       **_source(results, results.copying.iloc[0], settings))  # fmt: skip
    worst = own.loc[own["copied"].idxmin()]
    short = int((own["copied_high"] < limit).sum())
    if short:
        verdict = DIRECTION
    else:
        verdict = NOT_REPRODUCED if (own["copied_low"] >= limit).all() else INCONCLUSIVE
    said = "; ".join(
        f"{row.trial} {row.reading} {row.copied:.0%} ({row.copied_low:.0%} to "
        f"{row.copied_high:.0%}{_random(results, row.trial, row.reading)}) at {row.delta:+.1%} "
        "perplexity" for row in own.itertuples()
    )  # fmt: skip
    return Outcome(
        verdict,
        f"{short} of {len(own)} masks {near} find less than {limit:.0%} of what the pretrained "
        f"model gains from having read a passage of {worst['passage']} tokens before: {said}. "
        "(.n: with keys found word for word, not by learnt groups alone)",
        ours=float(worst["copied"]), low=float(worst["copied_low"]),
        high=float(worst["copied_high"]), n=int(worst["n_documents"]),
        **_source(results, worst, settings),
    )  # fmt: skip


def _random(results: Results, trial: str, reading: str) -> str:
    """What random routers find under a mask at least as dense, in words; empty if not scored."""
    frame = results.copying
    own = frame[(frame["trial"] == trial) & (frame["kind"] == "random")]
    own = own[own["reading"] == reading]
    return "" if own.empty else f"; random routers {own.iloc[0]['copied']:.0%}"


def _source(results: Results, row: pd.Series, settings: LedgerSettings) -> dict[str, str]:
    run = results.run("copying", row["cell"])
    return {
        "evidence": row["evidence"],
        "command": run.get("command") or "python -m experiments.stages.copying",
        "scale": scope.describe(run, settings.scale, row["cell"]),
    }


def close(results: Results, most: float) -> pd.DataFrame:
    """Rows of trained routers' masks whose perplexity is at most ``most`` (relative) above the
    pretrained model's: with that as ``delta``, and as ``gain`` the nats a token that the pretrained
    model gains from the first reading."""
    copied, scored = results.copying, results.recipe
    gains = copied[copied["kind"] == "new"].set_index("trial")["above"]
    copied = copied[copied["kind"] == "routed"].assign(gain=lambda c: c["trial"].map(gains))
    scored = scored[scored["final"].astype(bool) & (scored["kind"] == "routed")]
    same = ["trial", "reading", "K", "trained_on"]  # of one training, as far as files tell
    both = copied.merge(scored[[*same, "delta"]], on=same)
    return both[both["delta"] <= most]
