"""How far answers are from the original model's: by LoRA, and under a mask (alignment)."""

from __future__ import annotations

from functools import cache

import numpy as np
import pandas as pd

from analysis.cells import Cell
from analysis.comparisons import quality
from analysis.results import Results
from analysis.rows import columns, need, only, wide
from experiments import statistics

COLUMNS = ["experiment", "cell", "role", "rate", "before", "budget", "questions", "divergence",
           "low", "high", "agreed", "distant_density", "gain", "gain_low", "gain_high",
           "evidence"]  # fmt: skip


@cache
def table(results: Results) -> pd.DataFrame:
    """A row a cell, budget and length of the text before the question: the divergence (nats a
    token, interval over questions), percent of the tokens that both models hold likeliest; and,
    where it was read, the change of the perplexity on plays against the pretrained model."""
    rows = []
    grouped = results.readings["chat"].groupby(["cell", "before", "budget"], sort=False)
    for (name, before, budget), own in grouped:
        cell = results.cells[str(name)]
        found = statistics.two_way(divergence(own), results.confidence)
        rows.append({
            "experiment": cell.block, "cell": cell.name, "role": cell.role,
            "rate": cell.regime.get("learning_rate"), "before": int(before), "budget": budget,
            "questions": found.documents, **columns(found, "divergence"),
            "agreed": own["agreed"].mean(),
            "distant_density": own["distant_density"].mean(), **gain(results, cell, str(budget)),
            "evidence": own["evidence"].iloc[0],
        })  # fmt: skip
    return pd.DataFrame(rows, columns=COLUMNS)


def divergence(rows: pd.DataFrame) -> np.ndarray:
    """(seeds, questions)."""
    return wide(rows, rows["divergence"], ["document"])


def apart(results: Results, one: str, other: str, before: int) -> statistics.Interval:
    """How much further the answers of one cell are than another's, paired by question; Missing
    where one of them was not read."""
    own, theirs = (divergence(need(only(results.readings["chat"], cell=each, before=before)))
                   for each in (one, other))  # fmt: skip
    return statistics.two_way(own.mean(0) - theirs.mean(0), results.confidence)


def gain(results: Results, cell: Cell, budget: str) -> dict[str, float | None]:
    """Change of the perplexity on plays against the pretrained model, of the cell or of what it
    starts from; none where that was not read."""
    frame = only(quality(results), base_role="pretrained", texts="plays", reading="plays",
                 final=True)  # fmt: skip
    for name in (cell.name, cell.start):
        own = only(frame, cell=name)
        own = own[(own["condition"] == "full") | (own["budget"] == budget)]
        if len(own):
            row = own.iloc[0]
            return {"gain": row["change"], "gain_low": row["low"], "gain_high": row["high"]}
    return dict.fromkeys(("gain", "gain_low", "gain_high"))
