"""Benchmark scores with their exposure, paired by question."""

from __future__ import annotations

from functools import cache
from typing import Any

import pandas as pd

from analysis.cells import Cell
from analysis.comparisons import bases
from analysis.results import Results
from experiments import statistics

KEY = ["reading", "texts", "shots", "condition", "budget"]
QUESTION = ["document", "sha"]


@cache
def table(results: Results) -> pd.DataFrame:
    """A row a benchmark, cell, budget and base: scores and their difference in points, how many
    answers changed, what the right answer cost more (nats), and how far a mask reaches at all."""
    if results.answers.empty:
        return pd.DataFrame()
    found = [
        row
        for cell in results.cells.values()
        for base in bases(results, cell)
        for row in versus(results, cell, base)
    ]
    return pd.DataFrame(found)


def versus(results: Results, cell: Cell, base: Cell) -> list[dict[str, Any]]:
    """Rows of one cell against a full model."""
    frame = results.answers
    own, theirs = (frame[frame["cell"] == each.name] for each in (cell, base))
    found = []
    for key, ours in own.groupby(KEY, sort=False):
        reading, texts, shots, _, budget = key
        same = theirs[(theirs["reading"] == reading) & (theirs["texts"] == texts)]
        same = same[(same["shots"] == shots) & (same["condition"] == "full")]
        both = ours.merge(same, on=QUESTION, suffixes=("", "_base"))
        if len(both) < 2:
            continue
        right, base_right = scored(both), scored(both, "_base")
        points = statistics.two_way(wide(both, right - base_right), results.confidence)
        nats = both["right_nats"] - both["right_nats_base"]
        found.append({
            "experiment": cell.block, "cell": cell.name, "role": cell.role, "model": cell.model,
            "reading": reading,
            "texts": texts, "shots": int(shots), "budget": budget, "against": base.name,
            "questions": points.documents, "seeds": points.seeds,
            "score": 100 * right.mean(), "base_score": 100 * base_right.mean(),
            "points": 100 * points.value, "low": 100 * points.low, "high": 100 * points.high,
            "changed_percent": 100 * (right != base_right).mean(),
            "nats": nats.mean(), "greatest_nats": nats.abs().max(),
            "exposed_pairs_percent": 100 * both["exposure"].mean(),
            "exposed_questions_percent": 100 * (both["exposure"] > 0).mean(),
            "tokens": both["tokens"].mean(), "evidence": both["evidence"].iloc[0],
        })  # fmt: skip
    return found


def scored(both: pd.DataFrame, suffix: str = "") -> pd.Series:
    """Whether answers were right: by length, where the task has that, as the paper's scores are."""
    by_length = both[f"correct_norm{suffix}"]
    return by_length.where(by_length.notna(), both[f"correct{suffix}"]).astype(float)


def wide(both: pd.DataFrame, values: pd.Series) -> Any:
    """(seeds, questions)."""
    return both.assign(value=values).pivot_table("value", "seed", QUESTION).to_numpy()
