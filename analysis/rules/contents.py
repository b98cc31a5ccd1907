"""Rules of what groups hold: Section 5.

The paper does not say which layer its groups are of. So every way to group the same tokens, ours
and the others, names its group of all layers that is purest of a category on validation documents,
and is judged on test documents. A group speaks for the paper's where it beats every other way's.
"""

from __future__ import annotations

from typing import Any

import pandas as pd

from analysis import contents, scope
from analysis.paper import Claim, printed
from analysis.results import Results
from analysis.rows import Missing, columns, need, only, row_of
from analysis.rules.registry import (
    EARLY,
    Outcome,
    Verdict,
    around,
    facts,
    interval,
    points,
    rule,
    told,
    unless,
)
from analysis.words import ranged
from experiments import statistics
from experiments.settings import Tolerances

HALF = 50.0  # percent from which on a group is one of a category


def chosen(results: Results, group: str) -> tuple[pd.Series, pd.DataFrame]:
    """Rows of :func:`contents.purest` for one of the paper's groups: ours, and of other ways."""
    (row,) = printed("groups", group=group)
    every = only(contents.purest(results), category=row["category"])
    return need(row_of(every, by="groups")), every[every["by"] != "groups"]


def known(results: Results, own: pd.DataFrame) -> dict[str, Any]:
    """Evidence, command, n and scale."""
    return facts({**own.iloc[0], "documents": own["document"].nunique()}, results)


def few(claim: Claim, results: Results, own: Any) -> bool:
    """Whether the routers trained for fewer steps than the paper's: then nothing is refuted."""
    return scope.fewer_steps(claim, results, own["cell"])


def place(ours: pd.Series) -> str:
    """A group and its purity, in words; that it is not one of its category, where that is so."""
    none = f"no group is mostly of {ours['category']}; the purest, " if ours["high"] < HALF else ""
    return (f"{none}layer {ours['layer']}, group {ours['group']}: "
            f"{ranged(ours, 'purity', '.0f', '%')} of its tokens")  # fmt: skip


def beside(others: pd.DataFrame) -> tuple[bool, bool, str]:
    """Whether the learnt group is purer than that of every other way, whether one's is purer, and
    words for each way, the purest first."""
    ordered = others.sort_values("purity", ascending=False)
    won, lost = ordered["ours_more_low"] > 0, ordered["ours_more_high"] < 0
    words = "; ".join(
        f"{'beats' if more else 'loses to' if less else 'cannot be told from'} "
        f"{contents.WAYS[row['by']]} ({row['purity']:.0f}%), {points(row, 'ours_more')}"
        for (_, row), more, less in zip(ordered.iterrows(), won, lost, strict=True)
    )
    whole = set(contents.WAYS) == {"groups", *others["by"]}
    return whole and bool(won.all()), bool(lost.any()), words


def better_layers(results: Results) -> str:
    """In how many layers groups say more than k-means, in words."""
    own = only(contents.table(results), by="kmeans")
    own = own[own["layer"].astype(str) != "all"]
    more = int((own["ours_more_low"] > 0).sum())
    return f"in {more} of {len(own)} layers groups say more than k-means"


@rule(
    "groups.{group}.category",
    refuted="after as many steps, no group is mostly of this category on test documents, or "
    "another way to group the same tokens has one that is purer",
)
def category(claim: Claim, results: Results, group: str) -> Outcome:
    """Whether a group holds mostly this category, and whether groups are needed to see it."""
    ours, others = chosen(results, group)
    won, lost, words = beside(others)
    against = bool(ours["high"] < HALF or lost)
    verdict, early = unless(few(claim, results, ours), ours["low"] > HALF and won, against)
    why = f"{place(ours)}{early}; chosen alike, it {words}; {better_layers(results)}"
    return Outcome.of(verdict, why, ours, results, "purity")


@rule("groups.{group}.purity", refuted="after as many steps, an interval wholly beyond the limit "
      "same_share from the paper's")  # fmt: skip
def pure(claim: Claim, results: Results, limits: Tolerances, group: str) -> Outcome:
    """How pure the purest group of that category is; as pure as the paper's says something of
    groups only where no other way to group has one."""
    ours, others = chosen(results, group)
    value, paper = interval(ours, "purity"), claim.figure
    won, _, words = beside(others)
    verdict, early = around(value, paper, limits.same_share, few(claim, results, ours))
    if verdict == Verdict.DIRECTION and not won:
        verdict = Verdict.INCONCLUSIVE
    why = f"{place(ours)}; the paper {paper:g}%{early}; chosen alike, it {words}"
    return Outcome(verdict, why, **value, **facts(ours, results))


@rule(
    "groups.{group}.top_tokens",
    refuted="after as many steps, none of the paper's tokens among the most frequent, or no group "
    "that is mostly of the category",
)
def tokens(claim: Claim, results: Results, group: str) -> Outcome:
    """How many of the paper's most frequent tokens are among ours, and how many groups of all
    layers have as many: the words are frequent everywhere."""
    ours, others = chosen(results, group)
    theirs = [word.lower() for word in str(claim.paper).split()]
    shared = shared_words(results, theirs)
    same, *rest = (int(shared[tuple(row[contents.KEY])])
                   for row in (ours, *(row for _, row in others.iterrows())))  # fmt: skip
    chance = float((shared["groups"] >= same).mean())
    good = 2 * same >= len(theirs) and chance <= 1 - results.confidence and same > max(rest)
    verdict, early = unless(few(claim, results, ours), good and ours["low"] > HALF,
                            bool(not same or ours["high"] < HALF))  # fmt: skip
    words = ", ".join(f"that of {contents.WAYS[by]} {count}"
                      for by, count in zip(others["by"], rest, strict=True))  # fmt: skip
    why = (f"{place(ours)}; it has {same} of the paper's {len(theirs)} among the most frequent "
           f"tokens of a document, {words}; {chance:.0%} of all learnt groups have as many"
           f"{early}")  # fmt: skip
    return Outcome(verdict, why, **facts(ours, results))


def shared_words(results: Results, words: list[str]) -> pd.Series:
    """How many of these words each group, of each way, has among its most frequent tokens."""
    own = contents.right(results).groupby(contents.KEY)["top"]
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
    early = few(claim, results, own.iloc[0])
    verdict, said = around(percent, paper, limits.same_share, early)
    mean = ranged(percent, "ours", ".1f", "%")
    why = f"{mean}, the mean over layers; the paper {paper:g}%{said}"
    if early and claim.column != "confidence" and verdict == Verdict.DIRECTION:
        verdict, why = Verdict.INCONCLUSIVE, f"still even, after far fewer steps: {why}"
    return Outcome(verdict, why, **columns(found, "ours"), **known(results, own))


@rule(
    "groups.notes.full-finetuning.persists",
    refuted="after as many steps, an interval wholly more than the limit same_share below",
)
def persists(claim: Claim, results: Results, limits: Tolerances) -> Outcome:
    """Whether groups trained with all weights hold parts of speech as well as those of routers
    alone. These are two trainings: neither goes on from the other."""
    alone, tuned = (need(contents.right(results, each)) for each in (contents.OWN, contents.TUNED))
    before, after = (contents.by_document(only(own, by="groups")) for own in (alone, tuned))
    found = statistics.mean(100 * (after - before).dropna(), results.confidence)
    limit = limits.same_share
    early = few(claim, results, tuned.iloc[0])
    verdict = told(found.low > -limit and not early, found.high < -limit and not early)
    seeds = [", ".join(map(str, sorted(own["seed"].unique()))) for own in (tuned, alone)]
    why = (f"{100 * after.mean():.1f}% of the tokens have their group's part of speech where all "
           f"weights were trained (seed {seeds[0]}), {100 * before.mean():.1f}% in another "
           f"training, of routers alone (seed {seeds[1]}; the same seed draws the same routers), "
           f"so {points(vars(found), 'value')}{EARLY * early}")  # fmt: skip
    return Outcome(verdict, why, **columns(found, "ours"), **known(results, tuned))


def evenness(results: Results, column: str) -> tuple[pd.Series, pd.DataFrame]:
    """By document, and the rows that tell: percent of the tokens in the smallest or the largest
    group; the mean confidence, a share, of the default of the ablations."""
    if column == "confidence":
        own = results.rows_of("ablate", "groups")
        return own.groupby(["document", "sha"])["confidence"].mean(), own
    own = need(only(contents.right(results), by="groups"))
    by_layer = own.groupby(["document", "sha", "layer"])["members"]
    least_or_most = by_layer.min() if column == "smallest_share" else by_layer.max()
    share = 100 * least_or_most / by_layer.sum()
    return share.groupby(["document", "sha"]).mean(), own
