"""Intervals of what is no change of perplexity: means and ratios over documents and seeds, by t."""

from __future__ import annotations

import numpy as np
import pandas as pd
from scipy import stats


def mean_interval(values: pd.Series, confidence: float) -> tuple[float, float, float]:
    """The mean of documents' values with its t-interval; the mean alone where there is one."""
    middle, count = float(values.mean()), len(values)
    if count < 2:
        return middle, float("nan"), float("nan")
    half = float(stats.t.ppf((1 + confidence) / 2, count - 1) * values.std(ddof=1) / count**0.5)
    return middle, middle - half, middle + half


def ratio_interval(
    part: pd.DataFrame, whole: pd.Series, confidence: float
) -> tuple[float, float, float]:
    """Sum of ``part`` over sum of ``whole``, with an interval over documents and seeds.

    Args:
        part: a row a document, a column a seed; whole: by document.
    """
    base = float(whole.sum())
    by_seed = part.sum() / base
    value = float(by_seed.mean())
    residual = part.mean(axis=1) - value * whole
    count, seeds = len(part), part.shape[1]
    if count < 2:
        return value, float("nan"), float("nan")
    variance = float((residual**2).sum()) * count / (count - 1) / base**2
    degrees = count - 1
    if seeds > 1:
        variance += float(by_seed.var(ddof=1)) / seeds
        degrees = min(degrees, seeds - 1) if by_seed.var() / seeds > variance / 2 else degrees
    half = float(stats.t.ppf((1 + confidence) / 2, degrees) * np.sqrt(variance))
    return value, value - half, value + half
