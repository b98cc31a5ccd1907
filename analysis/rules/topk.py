"""Rules that read the top-k stage: perplexity and pairs kept of Table 7, and audit point 6."""

from __future__ import annotations

from math import comb
from typing import Any

import pandas as pd

from analysis import scope
from analysis.paper import Claim, table
from analysis.results import Results
from analysis.rules.registry import (
    ARITHMETIC,
    DIRECTION,
    INCONCLUSIVE,
    NOT_REPRODUCED,
    REPRODUCED,
    Outcome,
    agree,
    rule,
)
from analysis.settings import LedgerSettings

GROUPS = 4  # K of Table 7


def hard(results: Results, top_k: int) -> pd.DataFrame:
    """Hard masks of K = 4 with this k, queries and keys alike."""
    frame = results.topk
    if frame.empty:
        return frame
    wanted = (frame["mode"] == "hard") & (frame["K"] == GROUPS) & (frame["top_k"] == top_k)
    return frame[wanted & (frame["probe"] == "symmetric")]


def paper_way(results: Results, top_k: int, claim: Claim) -> pd.Series | None:
    """The row nearest to the paper: no sinks, one router a layer, sequence-wide Sinkhorn; Eq. 2
    and the same model first.
    """
    frame = hard(results, top_k)
    if frame.empty:
        return None
    plain = (frame["sinks"] == 0) & frame["routers"].isin(["paper", "layer"])
    frame = frame[plain & (frame["balance"] == "sinkhorn")]
    if frame.empty:
        return None
    other_model = [not scope.same_model(claim, results.run("topk", cell)) for cell in frame["cell"]]
    order = frame.assign(_model=other_model, _gate=frame["gate"] != "eq2")
    return order.sort_values(["_model", "_gate", "seed"], kind="stable").iloc[0]


def pretrained(results: Results, row: pd.Series) -> pd.Series | None:
    """The pretrained model's row in the same cell."""
    frame = results.topk
    found = frame[(frame["cell"] == row["cell"]) & (frame["mode"] == "pretrained")]
    return None if found.empty else found.iloc[0]


def facts(row: pd.Series, results: Results, settings: LedgerSettings) -> dict[str, Any]:
    """Evidence, command, n and scale of a row, as an Outcome takes them."""
    run, cell = results.run("topk", row["cell"]), row["cell"]
    return {
        "n": int(row["n_documents"]),
        "evidence": row["evidence"],
        "command": run.get("command") or f"python -m experiments.stages.topk --cell {cell}",
        "scale": scope.describe(run, settings.scale, cell),
    }


def reductions(claim: Claim, row: pd.Series, results: Results) -> list[str]:
    """What keeps a row from being the paper's own setting: model, text, steps, gate, scores."""
    run, cell = results.run("topk", row["cell"]), row["cell"]
    found = scope.differences(claim, run, cell)
    if row["gate"] != "eq2":
        found.append(f"gate {row['gate']} instead of Eq. 2")
    if row["routers"] != "paper":
        found.append("cosine scores instead of dot products")
    return found


def _with_sinks(results: Results, row: pd.Series, far: float) -> str:
    """Words on a variant that differs in sinks (and gate, and scores) alone and is not far worse
    after as few steps; empty where there is none: then the mask may be bad for want of training."""
    frame = hard(results, int(row["top_k"]))
    layers = frame["routers"].isin(["paper", "layer"])
    same = (frame["sinks"] > 0) & layers & (frame["balance"] == row["balance"])
    fine = frame[same & (frame["delta_high"] < far)]
    if fine.empty:
        return ""
    best = fine.sort_values("delta").iloc[0]
    return (
        f"not for want of training, since after as few steps {best['cell']} ({best['gate']} gate, "
        f"{int(best['sinks'])} sinks) has {best['delta']:+.1%}"
    )


def _direction(
    claim: Claim, delta: float, low: float, high: float, far: float, fewer_steps: bool, sinks: str
) -> tuple[str, str]:
    """Verdict on the sign of the change against pretrained (relative), from its interval."""
    top_k = claim.keys["k"]
    paper = float(table7_row(claim)["delta"])
    shift = f"{delta:+.1%} against pretrained ({low:+.1%} to {high:+.1%})"
    if top_k == 1:
        if low >= far and fewer_steps and not sinks:
            return INCONCLUSIVE, f"hard top-1 is far worse after far fewer steps: {shift}"
        if low >= far:
            why = f", {sinks}" if fewer_steps else ""
            return DIRECTION, f"hard top-1 is far worse here too{why}: {shift}"
        if high < far:
            return NOT_REPRODUCED, f"hard top-1 is not far worse here (limit {far:+.0%}): {shift}"
        return INCONCLUSIVE, f"the interval holds the limit of {far:+.0%} for 'far worse': {shift}"
    word = "below" if paper < 0 else "above"
    if low > 0 and paper > 0 and fewer_steps:
        # So would be any router that has not learnt yet.
        return INCONCLUSIVE, f"above pretrained here too, after far fewer steps: {shift}"
    if (low > 0 and paper > 0) or (high < 0 and paper < 0):
        return DIRECTION, f"{word} pretrained here too: {shift}"
    if (low > 0 and paper < 0) or (high < 0 and paper > 0):
        # What training gains is not refuted by a run that trained for a fraction of the steps.
        verdict = INCONCLUSIVE if low > 0 and fewer_steps else NOT_REPRODUCED
        return verdict, f"the paper is {word} pretrained, we are not: {shift}"
    return INCONCLUSIVE, f"the interval holds zero: {shift}"


def table7_row(claim: Claim) -> dict[str, Any]:
    """The row of Table 7 that the claim belongs to."""
    for row in table("table7")["rows"]:
        if row["model"] == claim.keys["model"] and row["k"] == claim.keys["k"]:
            return row
    raise ValueError(f"{claim.id}: no such row in Table 7")


@rule(
    "table7.{model}.k1.ppl",
    "table7.{model}.k2.ppl",
    "table7.{model}.k1.delta",
    "table7.{model}.k2.delta",
)
def sparse_perplexity(
    claim: Claim, results: Results, settings: LedgerSettings, model: str
) -> Outcome | None:
    """Perplexity of hard top-1 and top-2: the figure itself in the paper's setting, else its
    direction.
    """
    row = paper_way(results, claim.keys["k"], claim)
    base = None if row is None else pretrained(results, row)
    if row is None or base is None:
        return None
    known = facts(row, results, settings)
    delta, low, high = (float(row[c]) for c in ("delta", "delta_low", "delta_high"))
    if claim.column == "ppl":
        ours = dict(
            zip(
                ("ours", "low", "high"),
                map(float, row[["ppl", "ppl_low", "ppl_high"]]),
                strict=True,
            )
        )
    else:  # the stage gives relative changes; the paper gives perplexity points
        ours = {"ours": delta * base["ppl"], "low": low * base["ppl"], "high": high * base["ppl"]}
    apart = reductions(claim, row, results)
    if not apart:
        theirs = table7_row(claim)["ppl"]
        good = agree(float(row["ppl"]), float(theirs), settings.tolerances.same_ppl)
        why = f"{row['ppl']:.2f} against the paper's {theirs} in its own setting"
        verdict = REPRODUCED if good else NOT_REPRODUCED
        return Outcome(verdict, why, **ours, **known, same_setting=True)
    fewer_steps = scope.fewer_steps(apart)
    far = settings.tolerances.far_worse
    sinks = _with_sinks(results, row, far)
    verdict, why = _direction(claim, delta, low, high, far, fewer_steps, sinks)
    return Outcome(verdict, f"{why}; reduced: {', '.join(apart)}", **ours, **known)


@rule("table7.{model}.k1.pairs_retained", "table7.{model}.k2.pairs_retained")
def retained(
    claim: Claim, results: Results, settings: LedgerSettings, model: str
) -> Outcome | None:
    """Share of distant pairs that the hard mask keeps.

    The paper's 25-26% at k = 1 leaves no room for a window, so its figures are of distant pairs.
    At k = 1 groups that are equally full keep 1/K, whatever they learnt.
    """
    row = paper_way(results, claim.keys["k"], claim)
    if row is None:
        return None
    total, ours = 100 * float(row["density"]), 100 * float(row["distant_density"])
    close = settings.tolerances.density_points
    good = abs(ours - float(claim.paper)) <= close
    why = (
        f"{ours:.1f}% of the pairs outside the window, {total:.1f}% of all causal pairs; reduced: "
        f"{', '.join(reductions(claim, row, results))} (limit {close:g} points)"
    )
    known = facts(row, results, settings)
    even = 100 / GROUPS
    if good and claim.keys["k"] == 1 and abs(float(claim.paper) - even) <= close:
        why = f"one of {GROUPS} groups that are about equally full keeps about {even:g}%: {why}"
        return Outcome(ARITHMETIC, why, ours=ours, **known)
    if good:
        return Outcome(DIRECTION, why, ours=ours, **known)
    k = claim.keys["k"]
    chance = 100 * (1 - comb(GROUPS - k, k) / comb(GROUPS, k))
    if scope.fewer_steps(reductions(claim, row, results)) and abs(ours - chance) <= close:
        why = f"after far fewer steps it is what random groups keep ({chance:.0f}%): {why}"
        return Outcome(INCONCLUSIVE, why, ours=ours, **known)
    return Outcome(NOT_REPRODUCED, why, ours=ours, **known)


@rule("audit.6")
def soft_against_hard(claim: Claim, results: Results, settings: LedgerSettings) -> Outcome | None:
    """Soft and hard top-2 perplexity of one router trained with Eq. 2."""
    row = paper_way(results, 2, claim)
    if row is None or row["gate"] != "eq2":
        return None
    frame = results.topk
    same = (
        (frame["cell"] == row["cell"])
        & (frame["mode"] == "soft")
        & (frame["balance"] == row["balance"])
    )
    if frame[same].empty:
        return None
    soft = frame[same].iloc[0]
    gap, known = float(row["ppl"]) / float(soft["ppl"]) - 1, facts(row, results, settings)
    why = (
        f"one router, gate eq2: soft {soft['ppl']:.2f} ({soft['ppl_low']:.2f} to "
        f"{soft['ppl_high']:.2f}), hard top-2 "
        f"{row['ppl']:.2f} ({row['ppl_low']:.2f} to {row['ppl_high']:.2f}), a gap of {gap:+.1%}"
    )
    apart = row["ppl_low"] > soft["ppl_high"] or row["ppl_high"] < soft["ppl_low"]
    paired = row["delta_low"] > soft["delta_high"] or row["delta_high"] < soft["delta_low"]
    return Outcome(DIRECTION if apart or paired else INCONCLUSIVE, why, ours=gap, **known)
