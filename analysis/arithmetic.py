"""What can be checked by counting alone: sizes of routers and of LoRA, and the paper's figures
against each other.

Written to `results/tables/` first; the rules then read these files like any other result.
"""

from __future__ import annotations

import pandas as pd

from analysis.paper import paper, table

# (claim id, what is counted); the counts themselves are computed below.
ROUTERS = {
    "routing_dim.r768.centroid_params": ("gpt2-124m", 768, 4),
    "routing_dim.r128.centroid_params": ("gpt2-124m", 128, 4),
    "routing_dim.r32.centroid_params": ("gpt2-124m", 32, 4),
    "routing_dim.r16.centroid_params": ("gpt2-124m", 16, 4),
    "table1.focus.trained_params": ("gpt2-124m", 16, 4),
    "table3.focus-r16.trained_params": ("gpt2-124m", 16, 4),
    "table4.focus-k2.trained_params": ("mistral-7b-instruct", 16, 2),
}
SHARES = {
    "routing_dim.r768.percent_of_model": ("gpt2-124m", 768, 4),
    "routing_dim.r128.percent_of_model": ("gpt2-124m", 128, 4),
    "routing_dim.r32.percent_of_model": ("gpt2-124m", 32, 4),
    "routing_dim.r16.percent_of_model": ("gpt2-124m", 16, 4),
    "table2.notes.llama-2-70b.percent_of_model": ("llama-2-70b", 16, 4),
}


def router_parameters(model: str, routing_dim: int, groups: int) -> int:
    """One router a layer: L * (E * R + K * R)."""
    entry = paper()["models"][model]
    return entry["layers"] * (entry["width"] + groups) * routing_dim


def lora_parameters(model: str, rank: int) -> int:
    """LoRA on the fused query-key-value projection (GPT-2) or on queries and values (Mistral)."""
    entry = paper()["models"][model]
    width = entry["width"]
    if "key_width" in entry:
        return entry["layers"] * rank * (2 * width + width + entry["key_width"])
    return entry["layers"] * rank * (width + 3 * width)


def counts() -> pd.DataFrame:
    """Every count of parameters that follows from a shape: claim, ours, how it was counted."""
    rows = []
    for claim, (model, dim, groups) in ROUTERS.items():
        entry = paper()["models"][model]
        how = f"{entry['layers']} * ({entry['width']} * {dim} + {groups} * {dim})"
        rows.append((claim, router_parameters(model, dim, groups), how, None))
    for claim, (model, dim, groups) in SHARES.items():
        total = paper()["models"][model]["parameters"]
        count = router_parameters(model, dim, groups)
        # GPT-2's printed shares fit another whole: the model with its routers of 768 dimensions.
        whole = total + (router_parameters(model, 768, groups) if model == "gpt2-124m" else 0)
        how = f"{count} of {total} parameters"
        rows.append((claim, round(100 * count / total, 4), how, round(100 * count / whole, 4)))
    everything = paper()["models"]["gpt2-124m"]["parameters"]
    rows.append(("table1.full-attention-finetune.trained_params", everything, "all of it", None))
    for claim, model, rank in (
        ("table3.lora-r4.trained_params", "gpt2-124m", 4),
        ("table3.lora-r16.trained_params", "gpt2-124m", 16),
        ("table4.lora-r4-lr1e-5.trained_params", "mistral-7b-instruct", 4),
        ("table4.lora-r4-lr5e-5.trained_params", "mistral-7b-instruct", 4),
        ("table4.lora-r4-lr1e-4.trained_params", "mistral-7b-instruct", 4),
    ):
        where = "queries and values" if model.startswith("mistral") else "the fused projection"
        rows.append((claim, lora_parameters(model, rank), f"LoRA of rank {rank} on {where}", None))
    untrained = ("table1.pretrained.trained_params", "table4.instruct.trained_params")
    rows += [(claim, 0, "nothing is trained", None) for claim in untrained]
    frame = pd.DataFrame(rows, columns=["claim", "ours", "how", "of_larger_whole"])
    return frame.astype({"ours": float, "of_larger_whole": float})


# One quantity, named in several tables of the paper: (quantity, table, row key, row, column).
SAME_QUANTITY = (
    ("Focus on GPT-2 124M, PG-19, perplexity", "table1", "method", "focus", "ppl"),
    ("Focus on GPT-2 124M, PG-19, perplexity", "routing_dim", "R", 16, "ppl"),
    ("Focus on GPT-2 124M, PG-19, perplexity", "table2", "model", "gpt2-124m", "ppl_focus"),
    ("Focus on GPT-2 124M, PG-19, perplexity", "table3", "method", "focus-r16", "ppl"),
    ("Focus on GPT-2 124M, PG-19, perplexity", "table9", "value", 8, "centroid_ppl"),
    ("Focus on GPT-2 124M, PG-19, perplexity", "table10", "method", "focus", "ppl"),
    (
        "Full fine-tuning of GPT-2 124M, PG-19, perplexity",
        "table1",
        "method",
        "full-attention-finetune",
        "ppl",
    ),
    (
        "Full fine-tuning of GPT-2 124M, PG-19, perplexity",
        "table5",
        "model",
        "gpt2-124m",
        "ppl_full_attention_ft",
    ),
    (
        "Mistral 7B with full attention, PG-19, T = 1024, perplexity",
        "table2",
        "model",
        "mistral-7b",
        "ppl_pretrained",
    ),
    (
        "Mistral 7B with full attention, PG-19, T = 1024, perplexity",
        "long_context",
        "context",
        1024,
        "ppl_full",
    ),
    ("Router parameters of GPT-2 124M", "table1", "method", "focus", "trained_params"),
    ("Router parameters of GPT-2 124M", "table3", "method", "focus-r16", "trained_params"),
)


def repeated() -> pd.DataFrame:
    """The paper's figures for one and the same quantity, table by table (all of them the
    paper's).
    """
    rows = []
    for quantity, name, key, value, column in SAME_QUANTITY:
        entry = table(name)
        row = next(r for r in entry["rows"] if r[key] == value)
        rows.append((quantity, entry["source"], column, row[column]))
    return pd.DataFrame(rows, columns=["quantity", "table", "column", "paper"])
