"""All weights trained with Focus beside full attention: fine-tuned, by text, and from scratch
(Table 5)."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any

import pandas as pd

from analysis.cells import Cell
from analysis.comparisons import bases, versus
from analysis.results import Results

# How weights were trained: the experiment under full attention, and that with Focus.
PAIRS = {"fine-tuned": ("finetuned", "finetuned_focus"),
         "from scratch": ("scratch", "scratch_focus")}  # fmt: skip
# The paper's texts, and ours of the same kind.
TEXTS = {"pg19": "plays", "wikitext-103": "articles", "openwebtext": "essays"}
NAMES = ["change", "low", "high", "ppl", "base_ppl", "documents", "seeds", "evidence"]
COLUMNS = ["weights", "method", "against", "texts", "cell", "condition", *NAMES]


@cache
def table(results: Results) -> pd.DataFrame:
    """A row a text and way to train: Focus against full attention after as many steps, under the
    training gate and under the hard mask; full attention against the model before. Each is read on
    documents of the texts that it was trained on."""
    rows = [
        row
        for weights, (full, routed) in PAIRS.items()
        for cell in results.cells.values()
        if cell.block in (full, routed)
        for row in of_cell(results, cell, weights, "full" if cell.block == full else "focus")
    ]
    return pd.DataFrame(rows, columns=COLUMNS)


def of_cell(results: Results, cell: Cell, weights: str, method: str) -> Iterator[dict[str, Any]]:
    """Rows of one training."""
    for base in bases(results, cell):
        for row in versus(results, cell, base):
            if row["texts"] == cell.texts:
                yield {"weights": weights, "method": method, "against": base.name,
                       "texts": cell.texts, "cell": cell.name, "condition": row["condition"],
                       **{name: row[name] for name in NAMES}}  # fmt: skip


def of(results: Results, weights: str, method: str, texts: str,
       condition: str) -> pd.Series | None:  # fmt: skip
    """One row of the table, None where it was not read."""
    frame = table(results)
    own = frame[(frame["weights"] == weights) & (frame["method"] == method)]
    own = own[(own["texts"] == texts) & (own["condition"] == condition)]
    return None if own.empty else own.iloc[0]
