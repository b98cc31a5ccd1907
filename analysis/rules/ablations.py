"""Rules of the ablations: Table 9 and the routing dimension.

Our model, text and steps are others than the paper's, so a figure is never judged, only what a
setting changes: whether it matters, and in which direction.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress

import pandas as pd

from analysis import ablations, scope
from analysis.ablations import DEFAULTS, STEADY
from analysis.paper import Claim, theirs
from analysis.results import Results
from analysis.rows import Missing, need, only, row_of
from analysis.rules.dominance import of_default
from analysis.rules.registry import EARLY, Outcome, Verdict, changed, facts, interval, points, rule
from analysis.rules.stability import of_groups
from analysis.rules.table7 import gate_of_all_steps
from experiments.settings import Tolerances

TRAINED = {"centroid_ppl": "centroids", "finetuned_ppl": "joint",
           "dominance_centroid": "centroids", "dominance_full_ft": "joint"}  # fmt: skip
SMALL = ("small here, too", "small in the paper alone", "small here")
FAR_LESS = "the same direction, but far less here"
WHOLE = 768  # the paper's model dimension: its routing in all of it


def pretrained() -> float:
    """The paper's perplexity of GPT-2 on PG-19."""
    return theirs("table1", "ppl", method="pretrained")


def with_value(results: Results, trained: str, setting: str, value: float, measure: str,
               **where: str) -> pd.Series:  # fmt: skip
    """The cell with this value of which this was read; of several trainings the longest."""
    own = only(ablations.table(results), trained=trained, setting=setting, **where)
    evidence = "groups_evidence" if measure == "largest" else "evidence"
    found = own.dropna(subset=[measure, evidence]).astype({"value": float})
    return need(row_of(found.iloc[::-1], value=value))


@rule(
    "table9.{parameter}.{value}.centroid_ppl", "table9.{parameter}.{value}.finetuned_ppl",
    refuted="after as many steps, where the paper's change is large, an interval on the other side "
    "of zero or wholly within the limit same_ppl; where it is small, one wholly beyond the limit",
)  # fmt: skip
def setting_changed(claim: Claim, results: Results, limits: Tolerances) -> Outcome:
    """Perplexity under the training gate, with one setting changed."""
    # All weights of the longest training are a model's that hardly reads far.
    where = {"base": DEFAULTS["joint"]} if TRAINED[claim.column] == "joint" else {}
    return judged(claim, results, limits, *both(claim, results, "change", **where))


@rule("table9.notes.k2.window.{value}.ppl", "table9.notes.k2.window.{value}.ppl_window_change",
      refuted="after as many steps, where the paper's change is large, an interval on the other "
      "side of zero or wholly within the limit same_ppl; where it is small, one beyond "
      "it")  # fmt: skip
def pair_of_groups(claim: Claim, results: Results, limits: Tolerances) -> Outcome:
    """Two groups: the smallest window against the default of eight, others against the smallest."""
    narrow = theirs("table9.notes", "ppl", window=16)
    if claim.column == "ppl":
        name, base = "two_groups", DEFAULTS["centroids"]
        paper = narrow / theirs("table9", "centroid_ppl", parameter="k", value=8) - 1
    else:
        name, base = f"two_groups_window-window{claim.keys['window']}", "two_groups"
        paper = claim.figure / narrow
    cell, other = (need(results.cells.get(each)) for each in (name, base))
    found = need(ablations.perplexity(results, cell, other))
    row, few = pd.Series({**found, "cell": name}), scope.fewer_steps(claim, results, name)
    verdict, why = beside_paper(row, paper, limits, few)
    why = f"{changed(row)} against {base}; the paper has {paper:+.1%}: {why}; training gate"
    return Outcome.of(verdict, why, row, results)


@rule("routing_dim.r{dimension}.ppl", refuted="after as many steps, an interval wholly beyond the "
      "limit same_ppl; of the default, one above zero or wholly within the limit")  # fmt: skip
def dimensions(claim: Claim, results: Results, limits: Tolerances) -> Outcome:
    """Perplexity with more dimensions to route in; the model's own for the paper's."""
    dimension = claim.keys["R"]
    paper, base = (theirs("routing_dim", "ppl", R=each) for each in (dimension, 16))
    own = only(ablations.table(results), trained="centroids", setting="routing_dim")
    value = float(own["value"].max()) if dimension == WHOLE and len(own) else float(dimension)
    row = with_value(results, "centroids", "routing_dim", value, "change")
    return judged(claim, results, limits, row, paper, base)


def both(claim: Claim, results: Results, measure: str,
         **where: str) -> tuple[pd.Series, float, float]:  # fmt: skip
    """Our row of a setting and value, of which this measure was read, the paper's figure, and the
    paper's at the default that we ran."""
    parameter, value = claim.keys["parameter"], claim.keys["value"]
    row = with_value(results, TRAINED[claim.column], parameter, float(value), measure, **where)
    paper, base = (theirs("table9", claim.column, parameter=parameter, value=each)
                   for each in (value, row["default"]))  # fmt: skip
    return row, paper, base


def judged(claim: Claim, results: Results, limits: Tolerances, row: pd.Series,
           paper: float, base: float) -> Outcome:  # fmt: skip
    """A change of perplexity beside the paper's, from ``base`` to ``paper``."""
    against = f"the default {row['default']:g}"
    if row["value"] == row["default"]:
        against, base = "the pretrained model", pretrained()
        if row["setting"] == "routing_dim":  # of the paper's main table, too
            row = gate_of_all_steps(claim, results, row)
        elif row["trained"] == "centroids":  # one run is the default of each setting
            row = default_of_all_steps(results, row)
    few = scope.fewer_steps(claim, results, row["cell"])
    theirs = paper / base - 1
    verdict, why = beside_paper(row, theirs, limits, few)
    why = (f"{shorter(results, row)}{changed(row)} against {against}; the paper has {theirs:+.1%}: "
           f"{why}; training gate")  # fmt: skip
    return Outcome.of(verdict, why, row, results)


def shorter(results: Results, row: pd.Series) -> str:
    """Words for a window that stands for the paper's, on text as much shorter."""
    if row.get("setting") != "window":
        return ""
    own = ablations.whole(results.cells[row["cell"]])["window"]
    return "" if own == row["value"] else f"A window of {own}, on text as much shorter: "


def default_of_all_steps(results: Results, row: pd.Series) -> pd.Series:
    """The default of as many steps as the paper's; ``row`` where there is none."""
    own = only(ablations.table(results), trained="centroids", cell=STEADY["centroids"])
    own = own.dropna(subset=["change"])
    return own.iloc[0] if len(own) else row


def beside_paper(row: pd.Series, theirs: float, limits: Tolerances,
                 few: bool = False) -> tuple[Verdict, str]:  # fmt: skip
    """:func:`beside` of a change of perplexity and the paper's, both relative."""
    return beside(interval(row), 100 * theirs, 100 * limits.same_ppl, limits.much_less, few)


def beside(ours: Mapping[str, float], theirs: float, limit: float, less: float, few: bool = False,
           words: tuple[str, str, str] = SMALL) -> tuple[Verdict, str]:  # fmt: skip
    """A change with its interval beside one of the paper's: whether it is small there and here, or
    large in both with the same sign. A run of far fewer steps can show an effect, never that there
    is none.

    Args:
        less: share of the paper's change that an interval around zero must reach to leave it open,
            and the mean to bear it out.
    """
    verdict, said = _beside(ours["low"], ours["high"], theirs, limit, less, words)
    if verdict == Verdict.DIRECTION and abs(theirs) > limit and ours["ours"] / theirs < less:
        verdict, said = Verdict.INCONCLUSIVE, FAR_LESS
    if few and (verdict == Verdict.NOT_REPRODUCED or said in (words[0], FAR_LESS)):
        return Verdict.INCONCLUSIVE, said + EARLY
    return verdict, said


def _beside(
    low: float, high: float, theirs: float, limit: float, less: float, words: tuple[str, str, str]
) -> tuple[Verdict, str]:
    in_both, in_the_paper, here = words
    if abs(theirs) <= limit:
        if -limit <= low and high <= limit:
            return Verdict.DIRECTION, in_both
        if low > limit or high < -limit:
            return Verdict.NOT_REPRODUCED, in_the_paper
        return Verdict.INCONCLUSIVE, f"the interval includes the limit, ±{limit:g}"
    if -limit <= low and high <= limit:
        return Verdict.NOT_REPRODUCED, here
    far_less = (low if theirs < 0 else high) / theirs < less
    if low <= 0 <= high:
        if far_less:
            return Verdict.NOT_REPRODUCED, "far less here"
        return Verdict.INCONCLUSIVE, "the interval includes zero"
    if (low > 0) == (theirs > 0):
        if far_less:
            return Verdict.INCONCLUSIVE, FAR_LESS
        return Verdict.DIRECTION, "the same direction"
    return Verdict.NOT_REPRODUCED, "the other direction"


def perfect(row: pd.Series) -> float:
    """What perfect balance alone changes, in points, where the number of groups is another."""
    return 100 / row["value"] - 100 / row["default"] if row["setting"] == "k" else 0.0


@rule(
    "table9.{parameter}.{value}.dominance_centroid",
    "table9.{parameter}.{value}.dominance_full_ft",
    refuted="after as many steps, where the paper's change is large, an interval on the other side "
    "of zero or wholly within the limit same_share, unless its fall is out of reach; where it is "
    "small, one wholly beyond it and not within it of the paper's; at each rate, and of another "
    "than one small model",
)  # fmt: skip
def groups_changed(claim: Claim, results: Results, limits: Tolerances) -> Outcome:
    """Tokens in the largest group, with one setting changed."""
    row, paper, base = both(claim, results, "largest")
    if row["value"] == row["default"]:
        with suppress(Missing):
            return of_default(claim, results, limits, str(row["trained"]))
    own = interval(row, "largest")
    said = f"{row['largest']:.0f}% of the tokens in the largest group (the paper {paper:g}%)"
    if row["value"] == row["default"]:
        return Outcome(Verdict.INCONCLUSIVE, said + EARLY, **own, **facts(of_groups(row), results))
    few, even = scope.fewer_steps(claim, results, row["cell"]), perfect(row)
    theirs = paper - base - even
    verdict, why = at_each_rate(results, row, theirs, limits, few)
    if verdict == Verdict.NOT_REPRODUCED and results.cells[row["cell"]].role == "small":
        verdict, why = Verdict.INCONCLUSIVE, f"{why}; all of one small model"
    why = (f"{shorter(results, row)}{said}: {points(row, digits=0)} against the default; the paper "
           f"{paper - base:+.0f}{f' (even groups {even:+.0f})' * bool(even)}: {why}")  # fmt: skip
    return Outcome(verdict, why, **own, **facts(of_groups(row), results))


def shares_beside(results: Results, row: pd.Series, theirs: float, limits: Tolerances,
                  few: bool) -> tuple[Verdict, str]:  # fmt: skip
    """Points of the largest group, above what perfect balance changes, beside the paper's."""
    limit, even = limits.same_share, perfect(row)
    ours = {"ours": float(row["points"]) - even,
            **{end: float(row[f"points_{end}"]) - even for end in ("low", "high")}}  # fmt: skip
    verdict, said = beside(ours, theirs, limit, limits.much_less, few)
    near = theirs - limit <= ours["low"] and ours["high"] <= theirs + limit
    if not few and near and (abs(theirs) <= limit or ours["ours"] / theirs >= limits.much_less):
        return Verdict.DIRECTION, f"within {limit:g} points of it"
    groups = ablations.whole(results.cells[row["base"]])["num_groups"]
    room = float(row["largest"]) - float(row["points"]) - 100 / groups
    out_of_reach = theirs < 0 and room < max(limit, -limits.much_less * theirs)
    if verdict == Verdict.NOT_REPRODUCED and out_of_reach:
        told = f"{said}, but the default is only {room:.1f} points above groups of one size"
        return Verdict.INCONCLUSIVE, told
    return verdict, said


def at_each_rate(results: Results, row: pd.Series, theirs: float, limits: Tolerances,
                 few: bool) -> tuple[Verdict, str]:  # fmt: skip
    """What :func:`shares_beside` finds, decided where the same setting and default, trained at
    every other rate, come to it too."""
    verdict, said = shares_beside(results, row, theirs, limits, few)
    others = ablations.again(results, *(results.cells[row[name]] for name in ("cell", "base")))
    if not others and verdict != Verdict.INCONCLUSIVE:
        return Verdict.INCONCLUSIVE, f"{said}, but at one learning rate, and the paper names none"
    for other in others:
        again = pd.Series({**row, **other})
        found, why = shares_beside(results, again, theirs, limits, few=False)
        said += f"; at a rate of {other['rate']:g} {points(again, digits=0)}: {why}"
        if found != verdict:
            verdict = Verdict.INCONCLUSIVE
    return verdict, said
