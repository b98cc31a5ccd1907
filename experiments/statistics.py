"""Intervals: over documents and over seeds at once, paired with a baseline's documents.

A change is a table of values, a row a seed and a column a document. Both are drawn from something
larger, so both spreads count: the mean of a two-way table of random effects without replication
has the variance (MS_seeds + MS_documents - MS_rest) / (S D), and Satterthwaite's degrees of freedom
(Searle, Casella and McCulloch, Variance Components, 1992). With one seed it is the ordinary t
interval over documents, which says nothing about seeds: ``seeds`` tells.

Shape suffixes: S seeds, D documents.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from scipy import stats

LEVEL = 0.95


@dataclass(frozen=True)
class Interval:
    """A value, the ends of its interval, and what it rests on."""

    value: float
    low: float
    high: float
    documents: int
    seeds: int


def two_way(values_SD: np.ndarray, level: float = LEVEL) -> Interval:
    """Mean of a table with its interval over seeds and documents.

    Raises:
        ValueError: fewer than two documents, or a value that is not finite.
    """
    values = np.atleast_2d(np.asarray(values_SD, dtype=float))
    seeds, documents = values.shape
    if documents < 2 or not np.isfinite(values).all():
        raise ValueError(f"an interval needs two documents or more and finite values, got {values}")
    mean = float(values.mean())
    variance, freedom = _variance(values)
    half = float(stats.t.ppf(0.5 + level / 2, freedom)) * variance**0.5 if variance > 0 else 0.0
    return Interval(mean, mean - half, mean + half, documents, seeds)


def _variance(values: np.ndarray) -> tuple[float, float]:
    """Variance of the mean, and its degrees of freedom."""
    seeds, documents = values.shape
    by_document = values.mean(0)
    squares = {"documents": seeds * float(by_document.var(ddof=1))}
    freedom = {"documents": documents - 1}
    if seeds == 1:
        return squares["documents"] / documents, documents - 1
    by_seed = values.mean(1)
    squares["seeds"] = documents * float(by_seed.var(ddof=1))
    freedom["seeds"] = seeds - 1
    rest = values - by_document - by_seed[:, None] + values.mean()
    freedom["rest"] = (seeds - 1) * (documents - 1)
    squares["rest"] = float((rest**2).sum()) / freedom["rest"]
    # An estimate below the spread of documents alone would be a matter of chance.
    total = max(squares["seeds"] + squares["documents"] - squares["rest"],
                squares["documents"], squares["seeds"])  # fmt: skip
    weight = sum(squares[name] ** 2 / freedom[name] for name in squares)
    return total / values.size, max(1.0, total**2 / weight if weight else 1.0)


def paired_change(ours: pd.DataFrame, base: pd.DataFrame, level: float = LEVEL) -> Interval:
    """Relative change of perplexity: exp(mean over seeds and documents of the difference in nats a
    token) - 1, every document counting alike.

    Args:
        ours, base: rows of one condition each, with columns seed, document, sha, nll, tokens. Equal
            seeds are paired; a side of one seed stands beside every seed of the other; a base of
            other seeds is averaged.

    Raises:
        ValueError: the two were not read on the same tokens.
    """
    (seeds, documents, one), (others, same, other) = _table(ours), _table(base)
    if documents != same:
        raise ValueError("a paired comparison needs the same documents and tokens on both sides")
    if seeds != others and len(others) > 1 and len(seeds) > 1:
        other = other.mean(0, keepdims=True)
    found = two_way(one - other, level)
    ends = np.expm1([found.value, found.low, found.high])
    return Interval(*map(float, ends), found.documents, found.seeds)


def _table(rows: pd.DataFrame) -> tuple[list[Any], list[Any], np.ndarray]:
    """Seeds S, documents D, and nats a token of each (S, D)."""
    keys = list(zip(*(rows[name] for name in ("seed", "document", "sha", "tokens")), strict=True))
    if len({key[:3] for key in keys}) < len(keys):
        raise ValueError("rows of more than one condition: choose one first")
    nats = dict(zip(keys, rows["nll"] / rows["tokens"], strict=True))
    seeds, documents = sorted({key[0] for key in keys}), sorted({key[1:] for key in keys})
    table_SD = np.array([[nats.get((seed, *each), np.nan) for each in documents]
                         for seed in seeds])  # fmt: skip
    if np.isnan(table_SD).any():
        raise ValueError("a seed lacks documents that another has: read them again")
    return seeds, documents, table_SD


def mean(values: Sequence[float], level: float = LEVEL) -> Interval:
    """Mean over documents (or questions) with its t interval."""
    return two_way(np.asarray([list(values)], dtype=float), level)


def ratio(above_SD: np.ndarray, below_SD: np.ndarray, level: float = LEVEL) -> Interval:
    """Sum over sum, with an interval over seeds and documents by linearisation.

    Args:
        above_SD, below_SD: paired tables.
    """
    above, below = np.atleast_2d(above_SD), np.atleast_2d(below_SD)
    value = float(above.sum() / below.sum())
    found = two_way((above - value * below) / below.mean(), level)
    return Interval(value, value + found.low, value + found.high, found.documents, found.seeds)


def median(values: Sequence[float], level: float, samples: int, seed: int) -> Interval:
    """Median over repetitions, with a percentile interval of resampled ones."""
    array = np.asarray(values, dtype=float)
    found = stats.bootstrap(
        (array,), np.median, confidence_level=level, n_resamples=samples, method="percentile",
        rng=np.random.default_rng(seed),
    ).confidence_interval  # fmt: skip
    return Interval(float(np.median(array)), float(found.low), float(found.high), len(array), 1)
