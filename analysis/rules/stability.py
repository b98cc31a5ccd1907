"""Rules of what keeps groups even while they learn: Table 8, and Sinkhorn beside losses.

What is blocked, and what collapses, is judged against a plain softmax trained alike: a mitigation
blocks an escape where it leaves at most the share ``blocked`` of that movement. Three things the
measures cannot tell. Hidden states move with frozen weights, too, since attention changes; they
move with trained ones whether the routers' gradient reaches them or not; and a mitigation that sets
centroids itself moves them, whether they would have drifted or not.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pandas as pd

from analysis import ablations, contents, scope
from analysis.paper import Claim
from analysis.results import Results
from analysis.rows import Missing, columns, need, only, row_of
from analysis.rules.registry import Outcome, Verdict, around, facts, interval, points, rule, told
from analysis.words import ranged
from experiments.settings import Tolerances
from experiments.statistics import Interval

ESCAPES = {"drift": "drift", "representation": "shift", "projection": "lost_rank"}
WORDS = {"drift": "centroids moved by {:.2f} of their norm",
         "shift": "hidden states moved by {:.2f} of their norm",
         "lost_rank": "projected tokens lost {:.0%} of their dimensions"}  # fmt: skip
PLAIN, SINKHORN, LOSSES = "plain softmax", "sinkhorn", "entropy-and-balance-loss"
WEIGHED = (LOSSES, "balance-weight-x5")
OWN_WEIGHTS = "the paper gives no weights of its losses: ours are 0.01"
CONVERGED = "steady_converged-sinkhorn_iterations1000"
SEEN = {True: "yes", False: "no", None: "cannot be told"}
DETACHED = "stop-gradient-on-inputs"
SETS_CENTROIDS = ("ema-centroids-and-projection", "recluster-every-100-steps")


def trained(results: Results, name: str, weights: bool, measure: str, **where: Any) -> pd.Series:
    """The longest training of a mitigation, by the paper's name, of which this was read."""
    known = ablations.mitigations(results).dropna(subset=measure)
    known = known.sort_values("steps", kind="stable")
    return need(row_of(known.iloc[::-1], name=name, weights=weights, **where))


def of_groups(row: pd.Series) -> dict[str, Any]:
    """The row with the reading of its groups as evidence, in place of its trace."""
    return {**row, "evidence": row["groups_evidence"]}


def known(row: Mapping[str, Any], results: Results, n: str = "layers") -> dict[str, Any]:
    """Evidence, command, n and scale."""
    cell, seeds = results.cells[row["cell"]], results.run_of(row["evidence"])["seeds"]
    scale = (f"{results.scale}; {cell.model}; {cell.texts}; T = {cell.regime['context']}; "
             f"{scope.steps(results, cell)}; seed {', '.join(map(str, seeds))}")  # fmt: skip
    return facts(row, results, n, scale)


@rule(
    *(f"table8.{{method}}.{escape}" for escape in ESCAPES),
    refuted="what the paper says is blocked moves as under a plain softmax, or the other way round",
)
def escape(claim: Claim, results: Results, limits: Tolerances, method: str) -> Outcome:
    """A movement under a mitigation, of that under a plain softmax: in the longest training, and a
    verdict needs the shorter one of another model to agree."""
    measure, limit, says = ESCAPES[claim.column], limits.blocked, str(claim.paper)
    row = trained(results, method, True, measure)
    plain = trained(results, PLAIN, True, measure, steps=row["steps"])
    left = ablations.moved(results, row["cell"], plain["cell"], measure)
    verdict, said = blocks(left, says, limit)
    if untold := cannot_tell(results, row, measure, limit * float(plain[measure])):
        verdict, said = Verdict.INCONCLUSIVE, untold
    why = (f"{WORDS[measure].format(row[measure])}, {left.value:.2f} ({left.low:.2f} to "
           f"{left.high:.2f}, over layers) of what it is under a plain softmax (limit {limit:g}): "
           f"{said}; the paper on blocking it: {says}")  # fmt: skip
    if verdict != Verdict.INCONCLUSIVE:
        for model, steps, other in shorter(results, row, measure):
            agrees = blocks(other, says, limit)[0] == verdict
            verdict = verdict if agrees else Verdict.INCONCLUSIVE
            why += f"; {model} after {steps} steps {'agrees' if agrees else 'does not'}: "
            why += ranged(vars(other), "value", ".2f")
    return Outcome(verdict, why, **columns(left, "ours"), unit="times a plain softmax's",
                   **known(row, results))  # fmt: skip


def blocks(left: Interval, says: str, limit: float) -> tuple[Verdict, str]:
    """What is left of a movement beside what the paper says of blocking it."""
    low, high = left.low, left.high
    if says not in ("yes", "no"):
        partly = limit < low and high < 1
        said = ("in part" if partly else "not blocked" if low > 1 else
                "wholly blocked" if high <= limit else "the interval includes both")  # fmt: skip
        return told(partly, low > 1), said
    if low <= limit < high:
        return Verdict.INCONCLUSIVE, f"the interval includes {limit:g}"
    blocked = high <= limit
    return told(blocked == (says == "yes"), True), "blocked" if blocked else "not blocked"


def shorter(results: Results, row: pd.Series, measure: str) -> Iterator[tuple[str, int, Interval]]:
    """Shorter trainings of a mitigation: model, steps, and what is left of the movement."""
    every = only(ablations.mitigations(results), weights=True).dropna(subset=measure)
    for _, other in only(every, name=row["name"]).iterrows():
        model = results.cells[other["cell"]].model
        beside = only(every, name=PLAIN, steps=other["steps"])
        plain = [name for name in beside["cell"] if results.cells[name].model == model]
        if other["steps"] < row["steps"] and plain:
            yield model, other["steps"], ablations.moved(results, other["cell"], plain[0], measure)


def cannot_tell(results: Results, row: pd.Series, measure: str, limit: float) -> str:
    """Why a measure says nothing of a mitigation; empty where it does."""
    if measure == "drift" and row["name"] in SETS_CENTROIDS:
        return "the mitigation sets the centroids itself, which this measure counts as drift"
    if measure != "shift":
        return ""
    known = only(ablations.mitigations(results), steps=row["steps"])
    frozen = only(known, name=[row["name"], PLAIN], weights=False)
    if (frozen["shift_high"] > limit).any():
        return (f"with frozen weights they move by {frozen['shift'].max():.2f}, too, so the "
                "measure cannot show them blocked")  # fmt: skip
    detached = row_of(known, name=DETACHED, weights=True)
    if detached is not None and min(row["shift"], detached["shift"]) > limit:
        return (f"they move by {detached['shift']:.2f} where no gradient of the routers reaches "
                f"them{', too' * (row['name'] != DETACHED)}: what moves them is the training of "
                "the weights")  # fmt: skip
    return ""


@rule("table8.{method}.outcome", refuted="no part of the outcome, after as many steps as the "
      "paper's; for Sinkhorn, also groups that are even and settled and hold parts of speech worse "
      "than k-means")  # fmt: skip
def outcome(claim: Claim, results: Results, limits: Tolerances, method: str) -> Outcome:
    """How the groups end."""
    row = trained(results, method, True, "largest")
    even = trained(results, SINKHORN, True, "largest", steps=row["steps"])
    fewer, seen = scope.fewer_steps(claim, results, row["cell"]), ends(row, even, limits)
    words = f"{'fewer than' if fewer else 'as'} in the paper; " + ", ".join(
        f"{what}: {SEEN[yes]}" for what, yes in seen.items())  # fmt: skip
    happens, nothing = all(seen.values()), all(yes is False for yes in seen.values())
    verdict = told(happens, nothing and (method == SINKHORN or not fewer))
    if verdict == Verdict.NOT_REPRODUCED and (shorter := happened(results, row, limits)):
        verdict, words = Verdict.INCONCLUSIVE, f"{words}; but yes in {shorter}"
    if verdict == Verdict.NOT_REPRODUCED:
        verdict, words = of_one_small(results, row, verdict, words)
    if method in WEIGHED:
        words += f"; {OWN_WEIGHTS}"
    if happens and method == SINKHORN:
        verdict, words = semantic(claim, results)
    why = (f"{row['largest']:.0f}% of the tokens in the largest of {row['groups']} groups "
           f"({row['largest_low']:.0f} to {row['largest_high']:.0f}), {row['alive']:.1f} groups "
           f"alive, {row['agreement']:.1%} of the tokens keep theirs; after {row['steps']} "
           f"steps, {words}")  # fmt: skip
    return Outcome(verdict, why, **interval(row, "largest"),
                   **known(of_groups(row), results, "documents"))  # fmt: skip


def of_one_small(results: Results, row: pd.Series, verdict: Verdict,
                 words: str) -> tuple[Verdict, str]:  # fmt: skip
    """The same, but open where one small model is all that says so."""
    if verdict == Verdict.INCONCLUSIVE or results.cells[row["cell"]].role != "small":
        return verdict, words
    return Verdict.INCONCLUSIVE, f"{words}; of one small model, at one learning rate"


def happened(results: Results, row: pd.Series, limits: Tolerances) -> str:
    """The other trainings of a mitigation that did end as the paper says, in words."""
    table = ablations.mitigations(results).dropna(subset="largest")
    others = only(table[table["cell"] != row["cell"]], name=row["name"], weights=True)
    even = {other["steps"]: trained(results, SINKHORN, True, "largest", steps=other["steps"])
            for _, other in others.iterrows()}  # fmt: skip
    return ", ".join(f"{other['cell']} after {other['steps']} steps"
                     for _, other in others.iterrows()
                     if all(ends(other, even[other["steps"]], limits).values()))  # fmt: skip


def ends(row: pd.Series, sinkhorn: pd.Series, limits: Tolerances) -> dict[str, bool | None]:
    """What the paper says of how the groups of one mitigation end, and whether it is so, beside
    Sinkhorn's; None where an interval includes the limit."""
    even = 100 / row["groups"] + limits.same_share
    settled = sinkhorn["agreement_low"], sinkhorn["agreement_high"]
    return {
        "entropy-and-balance-loss": {"collapse": above(row, "largest", limits.collapsed)},
        "stop-gradient-on-inputs": {"uneven": above(row, "largest", even),
                                    "unsettled": below(row, "agreement", *settled)},
        "ema-centroids-and-projection": {"lost rank": above(row, "lost_rank", limits.blocked)},
        "recluster-every-100-steps": {"balanced": below(row, "largest", even),
                                      "unsettled": below(row, "agreement", *settled)},
        "balance-weight-x5": {"dead groups": below(row, "alive", row["groups"] / 4 + 0.5)},
        SINKHORN: {"balanced": below(row, "largest", even),
                   "settled": above(row, "agreement", 1 - limits.same_share / 100)},
    }[row["name"]]  # fmt: skip


def above(row: pd.Series, name: str, limit: float) -> bool | None:
    """Whether a measure lies above a limit, None where its interval includes it."""
    return True if row[f"{name}_low"] > limit else False if row[f"{name}_high"] < limit else None


def below(row: pd.Series, name: str, low: float, high: float | None = None) -> bool | None:
    """Whether it lies below a limit, or below an interval of ``low`` to ``high``."""
    if row[f"{name}_high"] < low:
        return True
    return False if row[f"{name}_low"] > (low if high is None else high) else None


def semantic(claim: Claim, results: Results) -> tuple[Verdict, str]:
    """Whether even, stable groups hold parts of speech better than k-means of hidden states."""
    row = row_of(contents.table(results), layer="all", by="kmeans")
    if row is None:
        return Verdict.INCONCLUSIVE, "even and stable; what they hold was not read"
    more = (f"{points(row, 'ours_more', 0)} of tokens with their group's part of speech against "
            f"k-means of hidden states ({contents.OWN})")  # fmt: skip
    if row["ours_more_low"] > 0:
        return Verdict.DIRECTION, f"even, stable and semantic: {more}"
    if row["ours_more_high"] >= 0 or scope.fewer_steps(claim, results, contents.OWN):
        return Verdict.INCONCLUSIVE, f"even and stable; semantic cannot be told: {more}"
    return Verdict.NOT_REPRODUCED, f"even and stable, but less semantic than a clustering: {more}"


@rule("ours.sinkhorn.converged", refuted="an interval of the largest group's share wholly beyond "
      "the limit same_share from that of a thousand iterations on the same routers")  # fmt: skip
def converged(results: Results, limits: Tolerances) -> Outcome:
    """The iterations of training, and a thousand on the same routers."""
    cell, own = (need(results.cells.get(each)) for each in (CONVERGED, "steady"))
    row = need(ablations.largest(results, own, cell))
    few, many = own.method.get("sinkhorn_iterations", 10), cell.method["sinkhorn_iterations"]
    shares = interval(row, "points")
    verdict, _ = around(shares, 0.0, limits.same_share, few=False)
    why = (
        f"{row['largest']:.0f}% of the tokens in the largest of {own.method['num_groups']} "
        f"groups after {few} iterations, {points(row)} against {many:,}; same routers, of "
        f"{own.model}"
    )
    found = results.rows_of(cell.name, "groups")
    known = {**row, "cell": cell.name, "evidence": found["evidence"].iloc[0]}
    return Outcome(verdict, why, **shares, **facts(known, results))


@rule("ours.sinkhorn.losses", refuted="an interval of the difference, Sinkhorn minus losses, "
      "wholly above zero")  # fmt: skip
def beside_losses(results: Results) -> Outcome:
    """The largest group under Sinkhorn beside that under losses of entropy and balance, paired by
    document, after as many steps as the paper's."""
    even, losses = (trained(results, name, True, "largest") for name in (SINKHORN, LOSSES))
    cells = [results.cells[row["cell"]] for row in (even, losses)]
    if any(scope.fewer_steps(None, results, cell.name) for cell in cells):
        raise Missing
    row = {**of_groups(even), **ablations.largest(results, *cells)}
    need(row.get("points"))
    verdict = told(row["points_high"] < 0, row["points_low"] > 0)
    why = (f"{even['largest']:.0f}% of the tokens in the largest of {even['groups']} groups under "
           f"Sinkhorn, {losses['largest']:.0f}% under losses of entropy and balance, "
           f"{points(row)}, paired by document; {cells[0].model}; {OWN_WEIGHTS}")  # fmt: skip
    return Outcome(verdict, why, **interval(row, "points"), **known(row, results, "documents"))
