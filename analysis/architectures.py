"""The paper's setup on every attention type (Table 2): small models that were trained here, and at
the larger scales the paper's own."""

from __future__ import annotations

from functools import cache

import pandas as pd

from analysis import scope
from analysis.comparisons import quality
from analysis.paper import Claim, paper, printed
from analysis.results import Results
from analysis.rows import only, row_of

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


def attention_of(model: str) -> str | None:
    """The attention type of a model by its name in params.yaml, None where it is not known."""
    known = {small: name for name, small in TYPES.items()} | OTHERS
    for row in printed("table2"):
        entry = paper()["models"].get(row["model"], {})
        known[entry.get("source", row["model"])] = row["attention"]
    return known.get(model)


@cache
def table(results: Results) -> pd.DataFrame:
    """A row a model and mask: change of the perplexity under the training gate, and under hard
    masks, against the same model with full attention."""
    own = only(quality(results), experiment=ROUTED)
    known = {"attention": own["model"].map(attention_of),
             "top_k": own["top_k"].where(own["condition"] == "hard")}  # fmt: skip
    return own.assign(**known).dropna(subset="attention")[COLUMNS]


def worth(results: Results, model: str) -> pd.Series | None:
    """What a model loses that sees its window alone: what more distant tokens are worth to it. None
    where that was not read."""
    return row_of(quality(results), experiment=WINDOW, model=model)


def of(results: Results, attention: str, condition: str,
       claim: Claim | None = None) -> pd.Series | None:  # fmt: skip
    """One row of the table, of the claim's own model where that was read; None where no model of
    the type was."""
    own = only(table(results), attention=attention, condition=condition)
    if condition == "hard":
        own = only(own, top_k=2)
    if own.empty:
        return None
    same = [claim is not None and scope.same_model(claim, model) for model in own["model"]]
    return own[same].iloc[0] if any(same) else own.iloc[0]
