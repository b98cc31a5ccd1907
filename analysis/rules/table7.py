"""Rules of the paper's setup of four groups: perplexity and pairs kept of Table 7, on its models
and on the one that we run, and audit point 6."""

from __future__ import annotations

from math import comb
from typing import Any

import pandas as pd

from analysis import ablations, scope
from analysis.comparisons import best, change, quality
from analysis.paper import Claim, printed
from analysis.results import Results
from analysis.rows import Missing, need, only, row_of
from analysis.rules.registry import Outcome, Verdict, agree, changed, facts, interval, rule, told
from experiments.settings import Tolerances

GROUPS = 4  # K of Table 7


def hard(results: Results, top_k: int) -> pd.DataFrame:
    """Hard masks of K = 4 with this k, queries and keys alike, against the pretrained model."""
    return only(quality(results), condition="hard", base_role="pretrained", K=GROUPS, top_k=top_k,
                probe="symmetric", ngram=0, final=True)  # fmt: skip


def sinks(results: Results, row: Any) -> int:
    """Sinks of the mask, as its settings say."""
    return int(results.cells[row["cell"]].method.get("sinks", 0))


def paper_way(results: Results, top_k: int, claim: Claim | None = None) -> pd.Series:
    """The row nearest to the paper: no sinks, one router a layer, sequence-wide Sinkhorn; Eq. 2
    first, then as many steps as the paper's, at the rate that is best on validation documents. With
    a claim: of the model that it is about, where that was read."""
    frame = only(hard(results, top_k), balance="sinkhorn")
    cells = [results.cells[name] for name in frame["cell"]]
    plain = [c.method.get("routers") in ("paper", "layer") and not c.method.get("sinks", 0)
             for c in cells]  # fmt: skip
    own = frame.assign(
        _other=[claim is not None and not scope.same_model(claim, c.model) for c in cells],
        _gate=[c.method.get("gate") != "eq2" for c in cells],
        _few=[scope.fewer_steps(claim, results, c.name) for c in cells],
    )
    row = need(own[plain]).sort_values(["_other", "_gate", "_few"], kind="stable").iloc[0]
    rates = only(own, **{name: row[name] for name in ("model", "reading", "texts")})
    wanted = ablations.but_rate(results.cells[row["cell"]])
    rates = rates[[ablations.but_rate(results.cells[each]) == wanted for each in rates["cell"]]]
    if len(rates) == 1:
        return row
    return need(row_of(rates, cell=best(results, rates["cell"]).name))


def of_all_steps(claim: Claim, results: Results) -> pd.Series | None:
    """Hard top-2 nearest to the paper; None where that trained for fewer steps, or none did."""
    try:
        row = paper_way(results, 2)
    except Missing:
        return None
    return None if scope.fewer_steps(claim, results, row["cell"]) else row


def gate_of_all_steps(claim: Claim, results: Results, row: pd.Series) -> pd.Series:
    """The training gate of the same cell against the pretrained model; ``row`` without one."""
    nearest = of_all_steps(claim, results)
    own = None if nearest is None else gate_of(results, nearest)
    return row if own is None else own


def gate_of(results: Results, row: pd.Series) -> pd.Series | None:
    """The training gate of a hard row's cell against the pretrained model."""
    return row_of(quality(results), cell=row["cell"], final=True, base_role="pretrained",
                  condition="soft")  # fmt: skip


def with_sinks(results: Results, row: pd.Series, far: float) -> str:
    """Words on a cell that differs in sinks (and gate, and scores) and is not far worse after as
    few steps; empty where there is none: then a mask may be bad for want of training."""
    frame = hard(results, int(row["top_k"]))
    fine = frame[[sinks(results, each) > 0 for _, each in frame.iterrows()]]
    fine = only(fine[fine["high"] < far], texts=row["texts"])
    if fine.empty:
        return ""
    best = fine.sort_values("change").iloc[0]
    apart = f"{sinks(results, best)} sinks, {best['balance']} balance, its own gate and scores"
    return (f"not for want of training: after as few steps {best['cell']} ({apart}) has "
            f"{best['change']:+.1%}")  # fmt: skip


def table7_row(claim: Claim) -> dict[str, Any]:
    """The row of Table 7 that the claim belongs to."""
    (row,) = printed("table7", **claim.keys)
    return row


def far_worse(claim: Claim, results: Results, row: pd.Series, far: float) -> tuple[Verdict, str]:
    """Whether a mask is far worse than the pretrained model, for a claim that says it is: after
    fewer steps than the paper's only where others show that they are enough."""
    shift = f"{changed(row)} against pretrained"
    few = scope.fewer_steps(claim, results, row["cell"])
    trained = with_sinks(results, row, far) if few else ""
    if row["high"] < far:
        return Verdict.NOT_REPRODUCED, f"not far worse here (limit {far:+.0%}): {shift}"
    if row["low"] < far:
        return Verdict.INCONCLUSIVE, f"the interval includes the limit of {far:+.0%}: {shift}"
    if few and not trained:
        return Verdict.INCONCLUSIVE, f"far worse, but after far fewer steps: {shift}"
    return Verdict.DIRECTION, f"far worse here too{', ' * bool(trained)}{trained}: {shift}"


def in_its_setting(row: pd.Series, paper: float, limits: Tolerances) -> tuple[Verdict, str]:
    """Whether a perplexity is the paper's, where nothing differs from its setting."""
    why = f"{row['ppl']:.2f} against the paper's {paper} in its own setting"
    same = agree(float(row["ppl"]), paper, limits.same_ppl)
    return Verdict.REPRODUCED if same else Verdict.NOT_REPRODUCED, why


def same_sign(claim: Claim, results: Results, row: pd.Series, paper: float) -> tuple[Verdict, str]:
    """Whether a change has the paper's sign. What training gains is not refuted by a run that
    trained for a fraction of the steps, and what any untrained router loses confirms no loss."""
    shift = f"{changed(row)} against pretrained"
    if row["low"] <= 0 <= row["high"]:
        return Verdict.INCONCLUSIVE, f"the interval includes zero: {shift}"
    if row["low"] > 0 and scope.fewer_steps(claim, results, row["cell"]):
        return Verdict.INCONCLUSIVE, f"above pretrained, after far fewer steps: {shift}"
    if (row["low"] > 0) == (paper > 0):
        side = "above" if paper > 0 else "below"
        return Verdict.DIRECTION, f"{side} pretrained here too: {shift}"
    return Verdict.NOT_REPRODUCED, f"the other side of pretrained than the paper's: {shift}"


@rule(
    "table7.{model}.k1.ppl", "table7.{model}.k2.ppl", "table7.{model}.k1.delta",
    "table7.{model}.k2.delta",
    refuted="in the paper's setting another perplexity; else top-1 not far worse than pretrained, "
    "or top-2 on the other side of it",
)  # fmt: skip
def sparse_perplexity(claim: Claim, results: Results, limits: Tolerances) -> Outcome:
    """Hard top-1 and top-2: the figure in its setting, else the direction of the change."""
    row = paper_way(results, claim.keys["k"], claim)
    cell, theirs = results.cells[row["cell"]], table7_row(claim)
    apart = scope.differences(claim, cell, row)
    if not apart:
        verdict, why = in_its_setting(row, theirs["ppl"], limits)
        ours = float(row["ppl"] if claim.column == "ppl" else row["ppl"] - row["base_ppl"])
        return Outcome(verdict, why, ours=ours, **facts(row, results), same_setting=True)
    if claim.keys["k"] == 1:
        verdict, why = far_worse(claim, results, row, limits.far_worse)
    else:
        verdict, why = same_sign(claim, results, row, float(theirs["delta"]))
    before = printed("table7", model=claim.keys["model"])  # all of its rows have one base
    base = before[0]["ppl"] - before[0]["delta"]
    why = f"{why}, the paper's {theirs['delta'] / base:+.1%}; reduced: {', '.join(apart)}"
    return Outcome.of(verdict, why, row, results)


@rule("table7.{model}.k2.pairs_retained",
      refuted="another share of pairs than the paper's and than random groups keep")  # fmt: skip
def retained(claim: Claim, results: Results, limits: Tolerances) -> Outcome:
    """Share of distant pairs that hard top-2 keeps; the paper's 25-26% at k = 1 leave no room for
    a window, so its figures are of distant pairs."""
    row = paper_way(results, 2, claim)
    ours, close = 100 * float(row["distant_density"]), limits.density_points
    known = {"ours": ours, **facts(row, results)}
    chance = 100 * (1 - comb(GROUPS - 2, 2) / comb(GROUPS, 2))
    why = (f"{ours:.1f}% of the distant pairs, {row['density']:.1%} of all (the paper: "
           f"{claim.figure:g}%; random groups: {chance:.0f}%; limit {close:g} points)")  # fmt: skip
    if abs(ours - claim.figure) <= close:
        return Outcome(Verdict.DIRECTION, why, **known)
    if abs(ours - chance) <= close:  # whether the paper's have learnt more, nobody knows
        why = f"it is what random groups keep, so that our routers tell nothing of it: {why}"
        return Outcome(Verdict.INCONCLUSIVE, why, **known)
    return Outcome(Verdict.NOT_REPRODUCED, why, **known)


@rule("audit.6", refuted="soft and hard perplexity within the limit same_ppl of each other, "
      "the interval within it whole")  # fmt: skip
def soft_against_hard(results: Results, limits: Tolerances) -> Outcome:
    """Hard top-2 against the soft gate of one router trained with Eq. 2, paired by document."""
    row = paper_way(results, 2)
    if results.cells[row["cell"]].method.get("gate") != "eq2":
        raise Missing
    own = only(results.rows_of(row["cell"]), reading=row["reading"], texts=row["texts"])
    soft = need(only(own, condition="soft"))
    gap = change(only(own, budget=row["budget"]), soft, results.confidence)
    limit = limits.same_ppl
    why = f"one router, gate of Eq. 2: hard top-2 against soft {changed(gap)} (limit {limit:.0%})"
    verdict = told(gap["low"] > limit or gap["high"] < -limit,
                   -limit <= gap["low"] and gap["high"] <= limit)  # fmt: skip
    return Outcome(verdict, why, **interval(gap), **facts(row, results))
