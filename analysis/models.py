"""The paper's setup on other models: every attention type (Table 2), on small models that were
trained here and at the larger scales on the paper's own; and all weights trained with Focus beside
full attention: fine-tuned, by text, and from scratch (Table 5). And routers on longer texts than
they were trained on, and where in them a mask costs (Section 4)."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any

import pandas as pd

from analysis import scope
from analysis.cells import Cell
from analysis.comparisons import change, paired, quality
from analysis.paper import Claim, paper, printed
from analysis.results import Results
from analysis.rows import need, only, row_of

# The paper's name of an attention type, and our small model of it. Its own models are in Table 2.
TYPES = {
    "MHA": "small-gpt2", "GQA": "small-llama", "GQA + bias": "small-qwen2",
    "MHA + QK-norm": "small-olmo2", "interleaved + soft-cap": "small-gemma2",
}  # fmt: skip
# The type that the paper names and has no model of; and the model that we run most on.
OTHERS = {"gemma-2-9b": "interleaved + soft-cap", "smollm2-135m-instruct": "GQA"}
# Of params.yaml, against the same models with full attention; and a window alone.
ROUTED, WINDOW = "types_paper", "types_window"
COLUMNS = ["attention", "model", "cell", "condition", "budget", "texts", "context", "top_k",
           "change", "low", "high", "ppl", "base_ppl", "distant_density", "documents", "seeds",
           "evidence"]  # fmt: skip
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
TUNED = ["weights", "steps", "method", "against", "texts", "cell", "condition", *NAMES]
# Experiments on longer texts, and what they are called.
LINES = {
    "long_paper": "the paper's setup, 2 of 4 groups",
    "long_paper_steps": "the paper's setup, its 4,000 steps",
    "long_paper_books": "the paper's setup on books, 2 of 4 groups",
    "long_recipe": "ours: FocusConfig.recipe()",
    "long_heavy_untrained": "ours, with heavy hitters",
    "long_longer_heavy": "ours, heavy hitters, 3x steps",
    "long_longer_allocated": "ours, calibrated, 3x steps",
}
LENGTHS = ["method", "trained_at", "cell", "context", "against", "change", "low", "high",
           "distant_density", "density", "documents", "seeds", "evidence"]  # fmt: skip


def attention_of(model: str) -> str | None:
    """The attention type of a model by its name in params.yaml, None where it is not known."""
    known = {small: name for name, small in TYPES.items()} | OTHERS
    for row in printed("table2"):
        entry = paper()["models"].get(row["model"], {})
        known[entry.get("source", row["model"])] = row["attention"]
    return known.get(model)


@cache
def types(results: Results) -> pd.DataFrame:
    """A row a model and mask: change of the perplexity against the model with full attention."""
    own = only(quality(results), experiment=ROUTED)
    known = {"attention": own["model"].map(attention_of),
             "top_k": own["top_k"].where(own["condition"] == "hard")}  # fmt: skip
    return own.assign(**known).dropna(subset="attention")[COLUMNS]


def worth(results: Results, model: str) -> pd.Series | None:
    """What a model loses that sees its window alone, None where that was not read."""
    return row_of(quality(results), experiment=WINDOW, model=model)


def of_type(results: Results, attention: str, condition: str,
       claim: Claim | None = None) -> pd.Series | None:  # fmt: skip
    """One row of :func:`types`, of the claim's own model where that was read; None without any."""
    own = only(types(results), attention=attention, condition=condition)
    if condition == "hard":
        own = only(own, top_k=2)
    if own.empty:
        return None
    same = [claim is not None and scope.same_model(claim, model) for model in own["model"]]
    return own[same].iloc[0] if any(same) else own.iloc[0]


@cache
def tuned(results: Results) -> pd.DataFrame:
    """A row a text and way to train: Focus against full attention after as many steps, under the
    training gate and under the hard mask; full attention against the model before. Each is read on
    documents of the texts that it was trained on."""
    own = only(quality(results), experiment=TRAINED)
    own = own[own["texts"] == own["cell"].map(lambda name: results.cells[name].texts)]
    trained = [TRAINED[block] for block in own["experiment"]]
    known = own.assign(weights=[weights for weights, _ in trained],
                       method=[method for _, method in trained],
                       steps=[results.cells[name].steps for name in own["cell"]])  # fmt: skip
    return known[TUNED].sort_values(["weights", "steps"], kind="stable")


def text_of(results: Results, text: str, weights: str = "fine-tuned") -> str:
    """The paper's text where weights were trained on it, else ours of the same kind."""
    read = set(only(tuned(results), weights=weights)["texts"])
    ours = TEXTS[text] if weights == "fine-tuned" else "articles"
    return text if text in read else ours


def gain(results: Results, texts: str, claim: Claim | None = None) -> pd.Series:
    """Full attention against the model before, of one that others pretrained: a small model of
    ours has read too little for its gain to be one of fine-tuning."""
    own = only(tuned(results), weights="fine-tuned", method="full", texts=texts, condition="full")
    small = [results.cells[name].model in TYPES.values() for name in own["cell"]]
    return _of_model(results, need(own[[not each for each in small]]), claim)


def of_training(results: Results, weights: str, method: str, texts: str, condition: str,
                claim: Claim | None = None) -> pd.Series:  # fmt: skip
    """One row of :func:`tuned`, of the longest training, of the claim's own model where that was
    trained; Missing where it was not read."""
    own = only(tuned(results), weights=weights, method=method, texts=texts, condition=condition)
    return _of_model(results, need(own), claim)


def _of_model(results: Results, rows: pd.DataFrame, claim: Claim | None) -> pd.Series:
    """The last of the rows of a claim's own model, or of all."""
    same = [claim is not None and scope.same_model(claim, results.cells[name].model)
            for name in rows["cell"]]  # fmt: skip
    return (rows[same] if any(same) else rows).iloc[-1]


@cache
def lengths(results: Results) -> pd.DataFrame:
    """A row an experiment and length: change of the perplexity against full attention at that
    length, and the share of the pairs kept; ``trained_at``: tokens of a training window."""
    own = only(quality(results), experiment=LINES, condition="hard")
    known = own.assign(method=own["experiment"].map(LINES),
                       trained_at=[trained_at(results, cell) for cell in own["cell"]])  # fmt: skip
    return known[LENGTHS].sort_values(["method", "context"], kind="stable")


def trained_at(results: Results, cell: str) -> int | None:
    """Tokens of the windows that a cell's start was trained on."""
    start = results.cells.get(results.cells[cell].start or "")
    return None if start is None else start.regime.get("context")


@paired
def positions(results: Results, cell: Cell, base: Cell) -> Iterator[dict[str, Any]]:
    """A row an experiment on longer texts and stretch of positions: change of perplexity, percent
    of its keys in the largest group, and of those in another group than in the first stretch."""
    own, theirs = (results.rows_of(each.name, "positions") for each in (cell, base))
    own = only(own, experiment=LINES, condition="hard")
    theirs = only(theirs, condition="full")
    for (budget, position), ours in own.groupby(["budget", "position"], sort=False):
        same = only(theirs, position=position)
        both = set(ours["sha"]) & set(same["sha"])
        ours, same = (only(each, sha=both) for each in (ours, same))
        if len(both) > 1:
            yield {
                "method": LINES[cell.block], "experiment": cell.block, "cell": cell.name,
                "position": int(position), "budget": budget,
                **change(ours, same, results.confidence),
                **{name: ours[name].mean() if name in ours else None
                   for name in ("largest", "moved")},
                "evidence": ours["evidence"].iloc[0],
            }  # fmt: skip
