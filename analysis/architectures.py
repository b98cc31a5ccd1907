"""The paper's way on every attention type: small models that were trained here (Table 2)."""

from __future__ import annotations

from functools import cache
from typing import Any

import pandas as pd

from analysis.cells import Cell
from analysis.comparisons import bases, versus
from analysis.results import Results

# The paper's name of an attention type, and our small model of it.
TYPES = {
    "MHA": "small-gpt2", "GQA": "small-llama", "GQA + bias": "small-qwen2",
    "MHA + QK-norm": "small-olmo2", "interleaved + soft-cap": "small-gemma2",
}  # fmt: skip
ROUTED = "types_paper"  # of params.yaml, against the same models with full attention
NAMES = ["change", "low", "high", "ppl", "base_ppl", "distant_density", "documents", "seeds",
         "evidence"]  # fmt: skip
COLUMNS = ["attention", "model", "cell", "condition", "budget", "top_k", *NAMES]


@cache
def table(results: Results) -> pd.DataFrame:
    """A row an attention type and mask: change of the perplexity under the training gate, and under
    hard masks, against the same model with full attention, trained on the same text."""
    rows = [row for attention, model in TYPES.items() for cell in routed(results, model)
            for row in of_cell(results, attention, cell)]  # fmt: skip
    return pd.DataFrame(rows, columns=COLUMNS)


def routed(results: Results, model: str) -> list[Cell]:
    """The cells with routers of one model."""
    return [cell for cell in results.cells.values()
            if cell.block == ROUTED and cell.model == model]  # fmt: skip


def of_cell(results: Results, attention: str, cell: Cell) -> list[dict[str, Any]]:
    """Rows of one model, one a mask."""
    found = [row for base in bases(results, cell) for row in versus(results, cell, base)]
    return [{"attention": attention, "model": cell.model, "cell": cell.name,
             "condition": row["condition"], "budget": row["budget"],
             "top_k": int(row["top_k"]) if row["condition"] == "hard" else None,
             **{name: row[name] for name in NAMES}} for row in found]  # fmt: skip


def of(results: Results, attention: str, condition: str, top_k: int = 2) -> pd.Series | None:
    """One row of the table, None where it was not read."""
    frame = table(results)
    own = frame[(frame["attention"] == attention) & (frame["condition"] == condition)]
    if condition == "hard":
        own = own[own["top_k"] == top_k]
    return None if own.empty else own.iloc[0]
