"""Benchmark scores under masks on the questions that a mask reaches, beside all questions.

A question is reached where its longest prompt has a pair beyond the window and the sinks. On the
others a mask changes nothing, so that a score over all questions is diluted by them.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any

import pandas as pd

from analysis.answers import QUESTION, asked, right_answers
from analysis.cells import Cell
from analysis.comparisons import pairs
from analysis.results import Results
from analysis.rows import columns, wide
from experiments import statistics

FEWEST = 10  # questions of an interval
UNMASKED = ("full", "performer")  # methods that keep every pair: no window bounds what they change
COLUMNS = ["experiment", "cell", "role", "model", "window", "reading", "shots", "budget", "against",
           "texts", "questions", "score", "base_score", "points", "low", "high",
           "reached_questions", "reached_score", "reached_base_score", "reached_points",
           "reached_low", "reached_high", "reached_changed", "unreached_changed",
           "evidence"]  # fmt: skip


@cache
def scores(results: Results) -> pd.DataFrame:
    """A row a mask, benchmark (and the paper's four together) and base: scores and their difference
    in points over all questions and over those reached, and how many answers changed among those
    reached and among the others. Nothing where a mask reaches none; no interval where it reaches
    fewer than :data:`FEWEST`."""
    return pd.DataFrame(pairs(results, _scores), columns=COLUMNS)


def _scores(results: Results, cell: Cell, base: Cell) -> Iterator[dict[str, Any]]:
    if cell.method.get("name") in UNMASKED:
        return
    for known, rows in asked(results, cell, base):
        reached = rows["exposure"] > 0
        inside, outside = rows[reached], rows[~reached]
        yield {
            **known, "questions": _number(rows), **_scored(rows, results.confidence),
            "reached_questions": _number(inside),
            **_scored(inside, results.confidence, "reached_"),
            "reached_changed": _changed(inside), "unreached_changed": _changed(outside),
            "evidence": rows["evidence"].iloc[0],
        }  # fmt: skip


def _scored(rows: pd.DataFrame, confidence: float, prefix: str = "") -> dict[str, float]:
    """Scores of some questions, and their difference; {} of none."""
    if rows.empty:
        return {}
    right, before = right_answers(rows), right_answers(rows, "_base")
    told = {f"{prefix}score": 100 * right.mean(), f"{prefix}base_score": 100 * before.mean()}
    if _number(rows) < FEWEST:
        return told | {f"{prefix}points": 100 * (right - before).mean()}
    found = statistics.two_way(wide(rows, right - before, QUESTION), confidence)
    return told | columns(found, f"{prefix}points", prefix, scale=100)


def _number(rows: pd.DataFrame) -> int:
    return len(rows.drop_duplicates(QUESTION))


def _changed(rows: pd.DataFrame) -> int:
    return int((right_answers(rows) != right_answers(rows, "_base")).sum())
