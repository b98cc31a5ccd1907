"""Rules of what groups hold: Section 5.

The paper does not say which layer its groups are of. Of every layer's groups, the one that is
purest of a category on validation documents stands for it, and is judged on test documents.
"""

from __future__ import annotations

from typing import Any

import pandas as pd

from analysis import contents, scope
from analysis.paper import Claim, printed
from analysis.results import Results
from analysis.rows import Missing, columns, need, only
from analysis.rules.registry import EARLY, Outcome, Verdict, around, facts, points, rule, told
from experiments import statistics
from experiments.settings import Tolerances

HALF = 50.0  # percent from which on a group is one of a category


def chosen(results: Results, group: str) -> tuple[pd.Series, pd.DataFrame] | None:
    """The group of ours that stands for one of the paper's, and its test rows."""
    (row,) = printed("groups", group=group)
    best = contents.best(results, row["category"])
    if best is None:
        return None
    own = only(contents.right(results), by="groups", layer=best["layer"], group=best["group"])
    return None if len(own) < 2 else (best, own)


def known(results: Results, own: pd.DataFrame) -> dict[str, Any]:
    """Evidence, command, n and scale."""
    return facts({**own.iloc[0], "documents": own["document"].nunique()}, results)


def few(claim: Claim, results: Results, own: pd.DataFrame) -> bool:
    """Whether the routers trained for fewer steps than the paper's: then nothing is refuted."""
    return scope.fewer_steps(claim, results, own.iloc[0]["cell"])


def purity(results: Results, own: pd.DataFrame) -> dict[str, float]:
    """Percent of the group's test tokens that have its category."""
    by = own.groupby(["document", "sha"])[["hits", "members"]].sum()
    found = statistics.mean(100 * by["hits"] / by["members"], results.confidence)
    return columns(found, "ours")


def against_others(results: Results, layer: int) -> tuple[bool, str]:
    """Whether a layer's groups say more of parts of speech than k-means and than chance."""
    own = only(contents.table(results), layer=layer, by=["kmeans", "permuted"])
    words = "; ".join(f"{contents.WAYS[row['by']]} {row['purity']:.0f}%, so learnt groups "
                      f"{points(row, 'ours_more', 0)}" for _, row in own.iterrows())  # fmt: skip
    return bool((own["ours_more_low"] > 0).all()), words


def better_layers(results: Results) -> str:
    """In how many layers groups say more than k-means, in words."""
    own = only(contents.table(results), by="kmeans")
    own = own[own["layer"].astype(str) != "all"]
    more = int((own["ours_more_low"] > 0).sum())
    return f"in {more} of {len(own)} layers groups say more than k-means"


@rule(
    "groups.{group}.category",
    refuted="after as many steps, no group is mostly of this category on test documents",
)
def category(claim: Claim, results: Results, group: str) -> Outcome:
    """Whether a group holds mostly this category, and whether groups are needed to see it."""
    need(contents.table(results))
    found = chosen(results, group)
    if found is None:
        first = contents.right(results).head(1)
        why = f"in no layer is a group mostly of {claim.paper} on validation documents"
        early = few(claim, results, first)
        return Outcome(told(False, not early), why + EARLY * early, **known(results, first))
    best, own = found
    value, (more, words) = purity(results, own), against_others(results, int(best["layer"]))
    early = few(claim, results, own) and value["high"] < HALF
    verdict = told(value["low"] > HALF and more, value["high"] < HALF and not early)
    why = (f"layer {best['layer']}, group {best['group']}: {value['ours']:.0f}% "
           f"({value['low']:.0f} to {value['high']:.0f}) of its tokens{EARLY * early}; the layer's "
           f"tokens by part of speech: {words}; {better_layers(results)}")  # fmt: skip
    return Outcome(verdict, why, **value, **known(results, own))


@rule("groups.{group}.purity", refuted="after as many steps, an interval wholly beyond the limit "
      "same_share from the paper's")  # fmt: skip
def pure(claim: Claim, results: Results, limits: Tolerances, group: str) -> Outcome:
    """How pure the purest group of that category is."""
    best, own = need(chosen(results, group))
    value, paper = purity(results, own), claim.figure
    verdict, early = around(value, paper, limits.same_share, few(claim, results, own))
    why = (f"layer {best['layer']}, group {best['group']}: {value['ours']:.0f}% "
           f"({value['low']:.0f} to {value['high']:.0f}); the paper {paper:g}%{early}")  # fmt: skip
    return Outcome(verdict, why, **value, **known(results, own))


@rule(
    "groups.{group}.top_tokens",
    refuted="after as many steps, none of the paper's tokens among the most frequent",
)
def tokens(claim: Claim, results: Results, group: str) -> Outcome:
    """How many of the paper's most frequent tokens are among ours, and how many groups of all
    layers have as many: the words are frequent everywhere."""
    best, own = need(chosen(results, group))
    theirs = [word.lower() for word in str(claim.paper).split()]
    shared = shared_words(results, theirs)
    same = int(shared[(best["layer"], best["group"])])
    chance = float((shared >= same).mean())
    early = not same and few(claim, results, own)
    verdict = told(2 * same >= len(theirs) and chance <= 1 - results.confidence,
                   not same and not early)  # fmt: skip
    why = (f"layer {best['layer']}, group {best['group']} has {same} of the paper's {len(theirs)} "
           f"among the most frequent tokens of a document; so have {chance:.0%} of all "
           f"groups{EARLY * early}")  # fmt: skip
    return Outcome(verdict, why, **known(results, own))


def shared_words(results: Results, words: list[str]) -> pd.Series:
    """How many of these words each learnt group has among its most frequent tokens."""
    frame = contents.right(results)
    own = only(frame, by="groups").groupby(["layer", "group"])["top"]
    return own.agg(lambda top: len(set(words) & set(" ".join(top.dropna()).lower().split())))


@rule(
    "groups.notes.assignment.confidence", "groups.notes.assignment.smallest_share",
    "groups.notes.assignment.largest_share",
    refuted="after as many steps, an interval wholly beyond the limit same_share from the paper's",
)  # fmt: skip
def even(claim: Claim, results: Results, limits: Tolerances) -> Outcome:
    """How sure and how even groups are, the mean over layers."""
    by_document, own = evenness(results, claim.column)
    if len(by_document) < 2:
        raise Missing
    found = statistics.mean(by_document, results.confidence)
    factor = 100 if claim.column == "confidence" else 1  # the paper's is a share
    percent, paper = columns(found, "ours", scale=factor), factor * claim.figure
    early = few(claim, results, own)
    verdict, said = around(percent, paper, limits.same_share, early)
    why = (f"{percent['ours']:.1f}% ({percent['low']:.1f} to {percent['high']:.1f}), the mean over "
           f"layers; the paper {paper:g}%{said}")  # fmt: skip
    if early and claim.column != "confidence" and verdict == Verdict.DIRECTION:
        verdict, why = Verdict.INCONCLUSIVE, f"still even, after far fewer steps: {why}"
    return Outcome(verdict, why, **columns(found, "ours"), **known(results, own))


@rule(
    "groups.notes.full-finetuning.persists",
    refuted="after as many steps, an interval wholly more than the limit same_share below",
)
def persists(claim: Claim, results: Results, limits: Tolerances) -> Outcome:
    """Whether groups trained with all weights hold parts of speech as well as others do."""
    alone, tuned = (need(contents.right(results, each)) for each in (contents.OWN, contents.TUNED))
    before, after = (contents.by_document(only(own, by="groups")) for own in (alone, tuned))
    found = statistics.mean(100 * (after - before).dropna(), results.confidence)
    limit = limits.same_share
    early = few(claim, results, tuned)
    verdict = told(found.low > -limit and not early, found.high < -limit and not early)
    why = (f"{100 * after.mean():.1f}% of the tokens have their group's part of speech; "
           f"{100 * before.mean():.1f}% where routers alone were trained, so "
           f"{points(vars(found), 'value')}{EARLY * early}")  # fmt: skip
    return Outcome(verdict, why, **columns(found, "ours"), **known(results, tuned))


def evenness(results: Results, column: str) -> tuple[pd.Series, pd.DataFrame]:
    """By document, and the rows that tell: percent of the tokens in the smallest or the largest
    group; the mean confidence, a share, of the default of the ablations."""
    if column == "confidence":
        own = only(results.readings["groups"], cell="ablate")
        return own.groupby(["document", "sha"])["confidence"].mean(), own
    own = need(only(contents.right(results), by="groups"))
    by_layer = own.groupby(["document", "sha", "layer"])["members"]
    least_or_most = by_layer.min() if column == "smallest_share" else by_layer.max()
    share = 100 * least_or_most / by_layer.sum()
    return share.groupby(["document", "sha"]).mean(), own
