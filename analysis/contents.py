"""What groups hold, by part of speech: learnt groups beside other ways to group the same tokens.

Each group is given the category that most of its validation tokens have; what counts is how many
test tokens then have it.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import pandas as pd

from analysis.results import Results
from analysis.rows import columns, only
from experiments import statistics

CATEGORIES = ("punctuation", "determiners", "prepositions", "connectives", "verbs and pronouns",
              "content nouns", "modifiers", "other")  # fmt: skip
WAYS = {"groups": "learnt groups", "kmeans": "k-means of hidden states",
        "token": "token identity, modulo K", "permuted": "the learnt groups, shuffled"}  # fmt: skip
SEARCH, FINAL = "contents_search", "contents"
OWN, TUNED = "held", "held_tuned"  # experiments of params.yaml: routers alone, and with all weights
KEY = ["by", "layer", "group"]
LEAST = 0.02  # of the tokens: groups with fewer stand for nothing
COLUMNS = ["layer", "by", "purity", "low", "high", "ours_more", "ours_more_low", "ours_more_high",
           "documents", "evidence"]  # fmt: skip


@cache
def named(results: Results, experiment: str = OWN) -> pd.DataFrame:
    """The category of each layer's and way's groups on validation documents, how pure it is there,
    and the share of the tokens that the group has."""
    own = only(results.readings["contents"], reading=SEARCH, experiment=experiment)
    if own.empty:
        return pd.DataFrame(columns=[*KEY, "category", "purity", "share"])
    counts = own.groupby(KEY)[[*CATEGORIES, "members"]].sum()
    each = counts[list(CATEGORIES)]
    total = counts.groupby(["by", "layer"])["members"].transform("sum")
    return pd.DataFrame({
        "category": each.idxmax(axis=1), "purity": each.max(axis=1) / counts["members"],
        "share": counts["members"] / total,
    }).reset_index()  # fmt: skip


@cache
def right(results: Results, experiment: str = OWN) -> pd.DataFrame:
    """Test rows, each with the tokens that have their group's category (groups that no validation
    token was in have none)."""
    own = only(results.readings["contents"], reading=FINAL, experiment=experiment)
    names = named(results, experiment)[[*KEY, "category"]]
    own = own.merge(names, on=KEY, how="left") if len(names) else own.head(0).assign(category=None)
    hits = [row[row["category"]] if isinstance(row["category"], str) else 0
            for row in own.to_dict("records")]  # fmt: skip
    return own.assign(hits=hits)


def by_document(frame: pd.DataFrame) -> pd.Series:
    """Share of a document's tokens that have their group's category, the mean over layers."""
    sums = frame.groupby(["document", "sha", "layer"])[["hits", "members"]].sum()
    return (sums["hits"] / sums["members"]).groupby(["document", "sha"]).mean()


@cache
def table(results: Results) -> pd.DataFrame:
    """A row a layer (and ``all``) and way: percent of test tokens that have their group's category,
    and points that learnt groups have more, with intervals over documents."""
    frame, found = right(results), []
    for layer in ["all", *sorted(frame["layer"].unique())]:
        own = frame if layer == "all" else only(frame, layer=layer)
        ours = by_document(only(own, by="groups"))
        for by in WAYS:
            theirs = by_document(only(own, by=by))
            if len(theirs) == len(ours) > 1:
                found.append({"layer": layer, **row(by, ours, theirs, results.confidence),
                              "evidence": own["evidence"].iloc[0]})  # fmt: skip
    return pd.DataFrame(found, columns=COLUMNS)


def row(by: str, ours: pd.Series, theirs: pd.Series, confidence: float) -> dict[str, Any]:
    """One way, and what ours has more of."""
    found = statistics.mean(100 * theirs, confidence)
    more = statistics.mean(100 * (ours - theirs), confidence)
    return {"by": by, **columns(found, "purity"), **columns(more, "ours_more", "ours_more_"),
            "documents": found.documents}  # fmt: skip


def best(results: Results, category: str) -> pd.Series | None:
    """The learnt group that is purest of a category on validation documents, of those with a share
    of at least :data:`LEAST`."""
    own = only(named(results), by="groups", category=category)
    own = own[own["share"] >= LEAST]
    return None if own.empty else own.loc[own["purity"].idxmax()]
