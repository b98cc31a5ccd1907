"""All weights trained with Focus beside full attention: fine-tuned, by text, and from scratch
(Table 5)."""

from __future__ import annotations

from functools import cache

import pandas as pd

from analysis.architectures import TYPES
from analysis.comparisons import quality
from analysis.results import Results
from analysis.rows import need, only

# How an experiment of params.yaml trained weights, and under what attention.
TRAINED = {
    "finetuned": ("fine-tuned", "full"), "finetuned_focus": ("fine-tuned", "focus"),
    "finetuned_steps": ("fine-tuned", "full"), "finetuned_focus_steps": ("fine-tuned", "focus"),
    "scratch": ("from scratch", "full"), "scratch_focus": ("from scratch", "focus"),
}  # fmt: skip
# The paper's texts, and ours of the same kind.
TEXTS = {"pg19": "plays", "wikitext-103": "articles", "openwebtext": "essays"}
NAMES = ["top_k", "distant_density", "change", "low", "high", "ppl", "base_ppl", "documents",
         "seeds", "evidence"]  # fmt: skip
COLUMNS = ["weights", "steps", "method", "against", "texts", "cell", "condition", *NAMES]


@cache
def table(results: Results) -> pd.DataFrame:
    """A row a text and way to train: Focus against full attention after as many steps, under the
    training gate and under the hard mask; full attention against the model before. Each is read on
    documents of the texts that it was trained on."""
    own = only(quality(results), experiment=TRAINED)
    own = own[own["texts"] == own["cell"].map(lambda name: results.cells[name].texts)]
    trained = [TRAINED[block] for block in own["experiment"]]
    known = own.assign(weights=[weights for weights, _ in trained],
                       method=[method for _, method in trained],
                       steps=[results.cells[name].steps for name in own["cell"]])  # fmt: skip
    return known[COLUMNS].sort_values(["weights", "steps"], kind="stable")


def gain(results: Results, texts: str) -> pd.Series:
    """Full attention against the model before, of one that others pretrained: a small model of
    ours has read too little for its gain to be one of fine-tuning."""
    own = only(table(results), weights="fine-tuned", method="full", texts=texts, condition="full")
    small = [results.cells[name].model in TYPES.values() for name in own["cell"]]
    return need(own[[not each for each in small]]).iloc[-1]


def of(results: Results, weights: str, method: str, texts: str, condition: str) -> pd.Series:
    """One row of the table, of the longest training; Missing where it was not read."""
    own = only(table(results), weights=weights, method=method, texts=texts, condition=condition)
    return need(own).iloc[-1]
