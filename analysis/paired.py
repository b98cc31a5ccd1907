"""Trials held against each other on the documents that both were scored on: the difference is
paired by document, since two means with intervals of their own say little about it."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations

import numpy as np
import pandas as pd

from analysis.results import Results

COLUMNS = [
    "texts", "reading", "trial", "against", "change", "low", "high", "distant_density",
    "distant_density_against", "seeds", "seeds_against", "n_documents",
]  # fmt: skip
SAMPLES, CONFIDENCE, SEED = 10_000, 0.95, 0


def paired(results: Results) -> pd.DataFrame:
    """A row a text, mask and pair of finalists: perplexity of ``trial`` relative to that of
    ``against``, less one, both the mean over their seeds, with a bootstrap interval over documents.

    Each counts relative to the pretrained model in its own run: processors round bfloat16
    differently, and what that does to masks is taken to be what it does to the pretrained model.
    Pairs whose documents, or scored tokens of these, differ are left out.
    """
    rows = []
    for texts, scores, masks in _sets(results):
        scores = above_pretrained(scores)
        routed = masks[masks["kind"] == "routed"].set_index(["trial", "reading"])
        for reading, own in scores.groupby("reading", sort=False):
            trials = {name: _by_document(rows) for name, rows in own.groupby("trial", sort=False)}
            for against, trial in combinations(trials, 2):
                one, other = trials[trial], trials[against]
                if not (one.index.equals(other.index) and one["tokens"].equals(other["tokens"])):
                    continue
                change, low, high = relative(one["nll"] - other["nll"], one["tokens"])
                rows.append([
                    texts, reading, trial, against, change, low, high,
                    *(routed.loc[(name, reading), column]
                      for column in ("distant_density", "seeds") for name in (trial, against)),
                    len(one),
                ])  # fmt: skip
    return pd.DataFrame(rows, columns=COLUMNS)


def above_pretrained(scores: pd.DataFrame) -> pd.DataFrame:
    """Rows of routed masks, ``nll`` (nats, summed over a document) less the pretrained model's on
    that document in the same run.

    Raises:
        KeyError: a trial has no row of the pretrained model for one of its documents.
    """
    key = ["trial", "document"]
    base = scores[scores["kind"] == "pretrained"].groupby(key)["nll"].mean()
    routed = scores[scores["kind"] == "routed"]
    return routed.assign(nll=routed["nll"] - base.loc[pd.MultiIndex.from_frame(routed[key])].array)


def relative(apart: pd.Series, tokens: pd.Series) -> tuple[float, float, float]:
    """exp of the mean loss difference, less one, and its interval over documents.

    Args:
        apart: difference of the summed losses of each document, nats.
        tokens: scored tokens of each.
    """
    drawn = np.random.default_rng(SEED).integers(0, len(apart), (SAMPLES, len(apart)))
    nats, counted = apart.to_numpy(), tokens.to_numpy()
    changes = np.expm1(nats[drawn].sum(1) / counted[drawn].sum(1))
    tail = (1 - CONFIDENCE) / 2
    low, high = np.quantile(changes, (tail, 1 - tail))
    return float(np.expm1(nats.sum() / counted.sum())), float(low), float(high)


def _by_document(rows: pd.DataFrame) -> pd.DataFrame:
    """Loss and tokens of each document, the mean over seeds."""
    return rows.groupby("document")[["nll", "tokens"]].mean()


def _sets(results: Results) -> Iterator[tuple[str, pd.DataFrame, pd.DataFrame]]:
    """Texts, their scores by document and their masks: the recipe's test books, then the other
    corpora."""
    masks = results.recipe
    final = masks[masks["final"].astype(bool)]
    if len(final):
        yield "the recipe's test books", results.documents("recipe", final["cell"].unique()), final
    for corpus, own in results.transfer.groupby("corpus", sort=False):
        yield str(corpus), results.documents("transfer", own["cell"].unique()), own
