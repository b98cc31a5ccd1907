"""What groups hold, by part of speech: learnt groups beside other ways to group the same tokens.
And what they tell of a token, and of groups of another seed or training: adjusted mutual
information (0 is chance, 1 that each tells the other).

Of parts of speech each group is given the category that most of its validation tokens have; what
counts is how many test tokens then have it. Of one category, every way to group names the group of
all its layers that is purest of it on validation documents.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any

import pandas as pd
from sklearn.metrics import adjusted_mutual_info_score

from analysis.results import Results
from analysis.rows import columns, only, tabled
from experiments import statistics

CATEGORIES = ("punctuation", "determiners", "prepositions", "connectives", "verbs and pronouns",
              "content nouns", "modifiers", "other")  # fmt: skip
WAYS = {"groups": "learnt groups", "kmeans": "k-means of hidden states",
        "token": "a hash of the token, number modulo K",
        "permuted": "the learnt groups, shuffled"}  # fmt: skip
SEARCH, FINAL = "contents_search", "contents"
OWN, TUNED = "held", "held_tuned"  # experiments of params.yaml: routers alone, and with all weights
KEY = ["by", "layer", "group"]
LEAST = 0.02  # of the tokens: groups with fewer stand for nothing
RECIPE = "held_recipe"
LABELS = {"token": "the token itself", "speech": "its part of speech",
          "frequency": "how frequent it is", "position": "its position"}  # fmt: skip
OTHERS = {"held_again": "groups of another seed", "held_tuned": "groups trained with all weights"}
NAMES = {**LABELS, **OTHERS}
PLACE = ["document", "sha", "layer"]


def counted(results: Results, experiment: str = OWN) -> pd.DataFrame:
    """Tokens of each category in every group of validation documents."""
    own = only(results.readings["contents"], reading=SEARCH, experiment=experiment)
    if own.empty:
        return pd.DataFrame(columns=[*CATEGORIES, "members"])
    return own.groupby(KEY)[[*CATEGORIES, "members"]].sum()


@cache
def named(results: Results, experiment: str = OWN) -> pd.DataFrame:
    """The category of groups on validation documents."""
    counts = counted(results, experiment)
    if counts.empty:
        return pd.DataFrame(columns=[*KEY, "category"])
    return counts[list(CATEGORIES)].idxmax(axis=1).rename("category").reset_index()


@cache
def right(results: Results, experiment: str = OWN) -> pd.DataFrame:
    """Test rows with the tokens that have their group's category; an unseen group has none."""
    own = only(results.readings["contents"], reading=FINAL, experiment=experiment)
    names = named(results, experiment)
    own = own.merge(names, on=KEY, how="left") if len(names) else own.head(0).assign(category=None)
    hits = [row[row["category"]] if isinstance(row["category"], str) else 0
            for row in own.to_dict("records")]  # fmt: skip
    return own.assign(hits=hits)


def by_document(frame: pd.DataFrame) -> pd.Series:
    """Share of a document's tokens that have their group's category, the mean over layers."""
    sums = frame.groupby(["document", "sha", "layer"])[["hits", "members"]].sum()
    return (sums["hits"] / sums["members"]).groupby(["document", "sha"]).mean()


@tabled()
def table(results: Results) -> Iterator[dict[str, Any]]:
    """A row a layer (and ``all``) and way: percent of test tokens that have their group's category,
    and points that learnt groups have more, with intervals over documents."""
    frame = right(results)
    for layer in ["all", *sorted(frame["layer"].unique())]:
        own = frame if layer == "all" else only(frame, layer=layer)
        ours = by_document(only(own, by="groups"))
        for by in WAYS:
            theirs = by_document(only(own, by=by))
            if len(theirs) == len(ours) > 1:
                found, more = (statistics.mean(100 * each, results.confidence)
                               for each in (theirs, ours - theirs))  # fmt: skip
                yield {"layer": layer, "by": by, **columns(found, "purity"),
                       **columns(more, "ours_more", "ours_more_"),
                       "documents": found.documents,
                       "evidence": own["evidence"].iloc[0]}  # fmt: skip


@tabled()
def purest(results: Results) -> Iterator[dict[str, Any]]:
    """A row a category and way: the group of :func:`best`, the share of validation tokens that it
    holds, percent of its test tokens that have the category, and points that the learnt groups'
    has more, with intervals over documents."""
    for category in CATEGORIES[:-1]:
        yield from _purest(results, category)


def best(results: Results, category: str) -> pd.DataFrame:
    """By way to group, the group of all layers that is purest of a category on validation
    documents, and no tiny one; nothing of test documents decides."""
    counts = counted(results)
    if counts.empty:
        return pd.DataFrame(columns=[*KEY, "share"])
    whole = counts.groupby(["by", "layer"])["members"].transform("sum")
    known = counts.assign(share=counts["members"] / whole)
    known = known[known["share"] >= LEAST]
    pure = (known[category] / known["members"]).groupby("by").idxmax()
    return known.loc[pure, ["share"]].reset_index()


def _purest(results: Results, category: str) -> Iterator[dict[str, Any]]:
    own = only(results.readings["contents"], reading=FINAL, experiment=OWN)
    own = own.merge(chosen := best(results, category), on=KEY) if len(own) else own
    if own.empty:
        return
    percent = own.assign(found=100 * own[category] / own["members"])
    by_document = percent.pivot_table("found", ["document", "sha"], "by").reindex(columns=[*WAYS])
    known = own.iloc[0][["cell", "evidence"]]
    for row in chosen.to_dict("records"):
        apart = (by_document["groups"] - by_document[row["by"]]).dropna()
        if len(apart) > 1:
            found = statistics.mean(by_document.loc[apart.index, row["by"]], results.confidence)
            more = statistics.mean(apart, results.confidence)
            yield {"category": category, **row, **columns(found, "purity"),
                   **columns(more, "ours_more", "ours_more_"),
                   "documents": found.documents, **known}  # fmt: skip


@tabled()
def information(results: Results) -> Iterator[dict[str, Any]]:
    """A row a layer (and ``all``, the mean over layers) and label, of the paper's setup and of the
    recipe: the mean over test documents."""
    frame = results.readings["information"]
    for name, own in only(frame, experiment=[OWN, RECIPE]).groupby("experiment"):
        told = [own.melt(PLACE, list(LABELS), var_name="about", value_name="found")]
        if name == OWN:
            told += [_of_groups(own, only(frame, experiment=each), each) for each in OTHERS]
        for about, one in pd.concat(told).groupby("about", sort=False):
            for layer, by in (("all", one), *one.groupby("layer")):
                by_document = by.groupby(["document", "sha"])["found"].mean()
                found = statistics.mean(by_document, results.confidence)
                yield {"layer": layer, "about": about, **columns(found, "information"),
                       "documents": found.documents,
                       **own.iloc[0][["cell", "evidence"]]}  # fmt: skip


def _of_groups(own: pd.DataFrame, other: pd.DataFrame, name: str) -> pd.DataFrame:
    """A row a document and layer: what one training's groups tell of another's."""
    if other.empty:
        return pd.DataFrame()
    both = own.merge(other, on=PLACE, suffixes=("", "_other"))
    found = [adjusted_mutual_info_score(list(row["groups"]), list(row["groups_other"]))
             for _, row in both.iterrows()]  # fmt: skip
    return both[PLACE].assign(about=name, found=found)
