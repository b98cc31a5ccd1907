"""Pairs of distant tokens that belong together, and how many of them a mask's groups keep: those
that copying needs (a token and its first reading), and words that a rule finds.

Percent throughout, with intervals over documents; a share beside what the groups keep of any
distant pair, which is what they would keep by chance.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pandas as pd

from analysis.results import Results
from analysis.rows import columns, ends, only, tabled
from experiments import statistics

READ = ["reading", "texts", "cell", "budget"]
DOCUMENT = ["document", "sha"]
KNOWN = ("K", "top_k", "probe", "ngram", "evidence")
LINKS = {"name": "one name, twice", "word": "any longer word, twice",
         "time": "two expressions of time", "words": "any two longer words"}  # fmt: skip
PLAIN_LINKS = {"name": "word", "time": "words"}  # what a link is like but for its meaning
# Measures by what they are multiplied with; the first with intervals.
MEASURED = {"shared": 100, "more": 100, "weight_shared": 100, "weight_more": 100, "dearer": 1}
PLAIN = {"chance": 100, "weight": 100, "weight_chance": 100, "by_word": 100, "nats": 1,
         "missed_nats": 1, "met_nats": 1}  # fmt: skip


@tabled(*READ, "role", "layer", *ends("shared"), "chance", *ends("more"), "weight",
        *ends("weight_shared"), "weight_chance", *ends("weight_more"), "by_word", "nats",
        "missed_nats", "met_nats", *ends("dearer"), "documents", *KNOWN)  # fmt: skip
def induction(results: Results) -> Iterator[dict[str, Any]]:
    """A row a mask and layer (and ``all``): percent of the pairs that copying needs in a shared
    group, and of all distant pairs of the same queries (``chance``; ``more``: points between them);
    the same with each pair counted by full attention's weight; what a copied token costs more than
    under full attention (``nats``), in the half of the tokens whose weight groups miss most, in the
    other half, and the difference (``dearer``)."""
    for key, own in results.readings["induction"].groupby([*READ, "layer"], sort=False):
        found = dict(zip([*READ, "layer"], key, strict=True))
        extra = (own["nll"] - own["full_nll"]).astype(float) / own["tokens"].astype(float)
        own = own.assign(nats=extra, dearer=own["missed_nats"] - own["met_nats"],
                         more=own["shared"] - own["chance"],
                         weight_more=own["weight_shared"] - own["weight_chance"])  # fmt: skip
        means = own.groupby(DOCUMENT)[[*MEASURED, *PLAIN]].mean()
        if len(means) > 1:
            yield {**found, **told(results, own), "documents": len(means),
                   **measured(means, results)}  # fmt: skip


def measured(means: pd.DataFrame, results: Results) -> dict[str, float]:
    """Columns of measures by document."""
    found: dict[str, float] = {name: scale * means[name].mean() for name, scale in PLAIN.items()}
    for name, scale in MEASURED.items():
        own = statistics.mean(scale * means[name], results.confidence)
        found |= columns(own, name, f"{name}_")
    return found


def told(results: Results, own: pd.DataFrame) -> dict[str, Any]:
    """What a mask is."""
    first = own.iloc[0]
    return {"role": results.cells[first["cell"]].role, **{name: first[name] for name in KNOWN}}


@tabled(*READ, "role", "layer", "link", "pairs", "shared", "chance", *ends("more", "beyond"),
        "documents", *KNOWN)  # fmt: skip
def affinity(results: Results) -> Iterator[dict[str, Any]]:
    """A row a mask, layer (and ``all``) and link: percent of such pairs in a shared group, of
    random ones at the same distances (``chance``; ``more``: points between them), and points that
    this is beyond what it is of other words (``beyond``): of one name beyond any longer word that
    comes again, of two expressions of time beyond any two longer words."""
    for key, own in results.readings["affinity"].groupby(READ, sort=False):
        yield from _linked(results, dict(zip(READ, key, strict=True)), own)


def _linked(results: Results, found: dict[str, Any], own: pd.DataFrame) -> Iterator[dict[str, Any]]:
    for layer, part in (("all", own), *own.groupby("layer")):
        by_link = {link: by_document(only(part, link=link)) for link in LINKS}
        for link, shares in by_link.items():
            if len(shares) < 2:
                continue
            more = statistics.mean(shares["more"], results.confidence)
            beyond = (shares["more"] - by_link[PLAIN_LINKS.get(link, link)]["more"]).dropna()
            row = {**found, **told(results, own), "layer": layer, "link": link,
                   "pairs": int(shares["pairs"].sum()), "shared": shares["shared"].mean(),
                   "chance": shares["chance"].mean(), **columns(more, "more", "more_"),
                   "documents": len(shares)}  # fmt: skip
            if link in PLAIN_LINKS and len(beyond) > 1:
                row |= columns(statistics.mean(beyond, results.confidence), "beyond", "beyond_")
            yield row


def by_document(rows: pd.DataFrame) -> pd.DataFrame:
    """Percent of a document's pairs, each counting alike, the mean over layers; and their number,
    of one layer."""
    count = rows["pairs"].astype(float)
    whole = rows.assign(shared=100 * rows["shared"] * count, chance=100 * rows["chance"] * count)
    grouped = whole.groupby(DOCUMENT)
    sums = grouped[["shared", "chance", "pairs"]].sum()
    shares = sums[["shared", "chance"]].astype(float).div(sums["pairs"].astype(float), axis=0)
    return shares.assign(more=shares["shared"] - shares["chance"],
                         pairs=sums["pairs"] // grouped["layer"].nunique())  # fmt: skip
