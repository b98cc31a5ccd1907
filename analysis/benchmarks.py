"""Benchmark scores with their exposure, paired by question."""

from __future__ import annotations

from functools import cache
from typing import Any

import pandas as pd

from analysis.cells import Cell
from analysis.comparisons import pairs
from analysis.results import Results
from analysis.rows import columns, only, wide
from experiments import statistics

KEY = ["reading", "shots", "condition", "budget"]
QUESTION = ["texts", "document", "sha"]
FOUR = ("hellaswag", "arc_easy", "piqa", "lambada_openai")  # the paper's, by lm-eval's names
EVERY = "all four"
COLUMNS = ["experiment", "cell", "role", "model", "window", "reading", "shots", "budget", "against",
           "texts", "questions", "seeds", "score", "base_score", "points", "low", "high",
           "changed_percent", "nats", "greatest_nats", "exposed_pairs_percent",
           "exposed_questions_percent", "tokens", "evidence"]  # fmt: skip


@cache
def table(results: Results) -> pd.DataFrame:
    """A row a benchmark (and the paper's four together), cell, budget and base: scores and their
    difference in points, how many answers changed, what the right answer cost more (nats), and how
    far a mask of the cell's window reaches at all."""
    return pd.DataFrame(pairs(results, versus), columns=COLUMNS)


def versus(results: Results, cell: Cell, base: Cell) -> list[dict[str, Any]]:
    """Rows of one cell against a full model."""
    frame = results.readings["benchmarks"]
    own, theirs = only(frame, cell=cell.name), only(frame, cell=base.name, condition="full")
    both = own.merge(theirs, on=["reading", "shots", *QUESTION], suffixes=("", "_base"))
    both = both.assign(exposure=exposed(both, cell))
    found = []
    for (reading, shots, _, budget), asked in both.groupby(KEY, sort=False):
        known = {"experiment": cell.block, "cell": cell.name, "role": cell.role,
                 "model": cell.model, "window": cell.window, "reading": reading,
                 "shots": int(shots), "budget": budget, "against": base.name}  # fmt: skip
        tasks = dict(list(asked.groupby("texts", sort=False)))
        if set(FOUR) <= set(tasks):
            tasks[EVERY] = only(asked, texts=FOUR)
        found += [known | {"texts": name} | compared(rows, results.confidence)
                  for name, rows in tasks.items() if len(rows) > 1]  # fmt: skip
    return found


def exposed(both: pd.DataFrame, cell: Cell) -> pd.Series:
    """Share of a question's causal pairs that lie beyond the cell's window and sinks; the reading's
    own where the method has no window."""
    if "window" not in cell.method:
        return both["exposure"]
    near = cell.window + int(cell.method.get("sinks", 0))
    last = (both["tokens"] - near).clip(lower=0)
    return last * (last + 1) / (both["tokens"] * (both["tokens"] + 1))


def compared(both: pd.DataFrame, confidence: float) -> dict[str, Any]:
    """Scores of the same questions, of a cell and of its base."""
    right, base_right = scored(both), scored(both, "_base")
    points = statistics.two_way(wide(both, right - base_right, QUESTION), confidence)
    nats = both["right_nats"] - both["right_nats_base"]
    return {
        "questions": points.documents, "seeds": points.seeds,
        "score": 100 * right.mean(), "base_score": 100 * base_right.mean(),
        **columns(points, "points", scale=100),
        "changed_percent": 100 * (right != base_right).mean(),
        "nats": nats.mean(), "greatest_nats": nats.abs().max(),
        "exposed_pairs_percent": 100 * both["exposure"].mean(),
        "exposed_questions_percent": 100 * (both["exposure"] > 0).mean(),
        "tokens": both["tokens"].mean(), "evidence": both["evidence"].iloc[0],
    }  # fmt: skip


def scored(both: pd.DataFrame, suffix: str = "") -> pd.Series:
    """Whether answers were right: by length, where the task has that, as the paper's scores are."""
    by_length = both[f"correct_norm{suffix}"]
    return by_length.where(by_length.notna(), both[f"correct{suffix}"]).astype(float)
