"""What groups tell of a token, and whether groups of another seed or training are the same groups:
adjusted mutual information (0 is chance, 1 that each tells the other)."""

from __future__ import annotations

from functools import cache

import pandas as pd
from sklearn.metrics import adjusted_mutual_info_score

from analysis.results import Results
from experiments import statistics

# Experiments of params.yaml: whose groups, and what they are held against.
OWN = "held"
LABELS = {"token": "the token itself", "speech": "its part of speech",
          "frequency": "how frequent it is", "position": "its place"}  # fmt: skip
OTHERS = {"held_again": "groups of another seed", "held_tuned": "groups trained with all weights"}
NAMES = {**LABELS, **OTHERS}
KEYS = ["document", "sha", "layer"]
COLUMNS = ["layer", "about", "information", "low", "high", "documents", "cell", "evidence"]


@cache
def table(results: Results) -> pd.DataFrame:
    """A row a layer (and ``all``, the mean over layers) and label: the mean over test documents."""
    frame = results.information
    own = frame[frame["experiment"] == OWN]
    if own.empty:
        return pd.DataFrame(columns=COLUMNS)
    told = pd.concat([_of_labels(own), *(_of_groups(own, frame[frame["experiment"] == name], name)
                                         for name in OTHERS)])  # fmt: skip
    rows = [_row(layer, about, by, results) for about, one in told.groupby("about", sort=False)
            for layer, by in (("all", one), *one.groupby("layer"))]  # fmt: skip
    known = {name: own.iloc[0][name] for name in ("cell", "evidence")}
    return pd.DataFrame([{**row, **known} for row in rows], columns=COLUMNS)


def _of_labels(own: pd.DataFrame) -> pd.DataFrame:
    """A row a document, layer and label."""
    return own.melt(id_vars=KEYS, value_vars=list(LABELS), var_name="about", value_name="found")


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
    return {"layer": layer, "about": about, "information": found.value, "low": found.low,
            "high": found.high, "documents": found.documents}  # fmt: skip
