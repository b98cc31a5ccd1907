"""What groups tell of a token, and whether groups of another seed or training are the same groups:
adjusted mutual information (0 is chance, 1 that each tells the other)."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

import pandas as pd
from sklearn.metrics import adjusted_mutual_info_score

from analysis.results import Results
from analysis.rows import columns, only
from experiments import statistics

# Experiments of params.yaml: whose groups, and what they are held against.
OWN, RECIPE = "held", "held_recipe"
LABELS = {"token": "the token itself", "speech": "its part of speech",
          "frequency": "how frequent it is", "position": "its position"}  # fmt: skip
OTHERS = {"held_again": "groups of another seed", "held_tuned": "groups trained with all weights"}
NAMES = {**LABELS, **OTHERS}
KEYS = ["document", "sha", "layer"]
COLUMNS = ["layer", "about", "information", "low", "high", "documents", "cell", "evidence"]


@cache
def table(results: Results) -> pd.DataFrame:
    """A row a layer (and ``all``, the mean over layers) and label, of the paper's setup and of the
    recipe: the mean over test documents."""
    found = [row for name in (OWN, RECIPE) for row in _of(name, results)]
    return pd.DataFrame(found, columns=COLUMNS)


def _of(name: str, results: Results) -> Iterator[dict[str, object]]:
    frame = results.readings["information"]
    own = only(frame, experiment=name)
    if own.empty:
        return
    known = {column: own.iloc[0][column] for column in ("cell", "evidence")}
    told = [own.melt(KEYS, list(LABELS), var_name="about", value_name="found")]
    if name == OWN:
        told += [_of_groups(own, only(frame, experiment=each), each) for each in OTHERS]
    for about, one in pd.concat(told).groupby("about", sort=False):
        for layer, by in (("all", one), *one.groupby("layer")):
            yield {**_row(layer, str(about), by, results), **known}


def _of_groups(own: pd.DataFrame, other: pd.DataFrame, name: str) -> pd.DataFrame:
    """A row a document and layer: what one training's groups tell of another's."""
    if other.empty:
        return pd.DataFrame()
    both = own.merge(other, on=KEYS, suffixes=("", "_other"))
    found = [adjusted_mutual_info_score(list(row["groups"]), list(row["groups_other"]))
             for _, row in both.iterrows()]  # fmt: skip
    return both[KEYS].assign(about=name, found=found)


def _row(layer: str | int, about: str, own: pd.DataFrame, results: Results) -> dict[str, object]:
    by_document = own.groupby(["document", "sha"])["found"].mean()
    found = statistics.mean(by_document, results.confidence)
    return {"layer": layer, "about": about, **columns(found, "information"),
            "documents": found.documents}  # fmt: skip
