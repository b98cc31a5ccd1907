"""What can be checked by counting alone: sizes of routers and of LoRA, and the paper's figures
against each other.

Written to `results/tables/` first; the rules then read these files like any other result.
"""

from __future__ import annotations

from typing import Any

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


LORAS = (
    ("table3.lora-r4.trained_params", "gpt2-124m", 4),
    ("table3.lora-r16.trained_params", "gpt2-124m", 16),
    ("table4.lora-r4-lr1e-5.trained_params", "mistral-7b-instruct", 4),
    ("table4.lora-r4-lr5e-5.trained_params", "mistral-7b-instruct", 4),
    ("table4.lora-r4-lr1e-4.trained_params", "mistral-7b-instruct", 4),
)
UNTRAINED = ("table1.pretrained.trained_params", "table4.instruct.trained_params")
# The same count printed a second time; where only one of the two agrees, the paper is at odds with
# itself.
ALSO = {"table1.focus.trained_params": ("table3", "method", "focus-r16", "trained_params")}


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
    """Every figure that follows from a shape by counting: claim, ours, how it was counted, and what
    the paper prints for the same elsewhere."""
    rows: list[dict[str, Any]] = []
    for claim, (model, dim, groups) in ROUTERS.items():
        entry = paper()["models"][model]
        how = f"{entry['layers']} * ({entry['width']} * {dim} + {groups} * {dim})"
        rows.append({"claim": claim, "ours": router_parameters(model, dim, groups), "how": how})
    for claim, (model, dim, groups) in SHARES.items():
        total = paper()["models"][model]["parameters"]
        count = router_parameters(model, dim, groups)
        # GPT-2's printed shares fit another whole: the model with its routers of 768 dimensions.
        whole = total + (router_parameters(model, 768, groups) if model == "gpt2-124m" else 0)
        rows.append({"claim": claim, "ours": round(100 * count / total, 4),
                     "how": f"{count} of {total} parameters",
                     "of_larger_whole": round(100 * count / whole, 4)})  # fmt: skip
    everything = paper()["models"]["gpt2-124m"]["parameters"]
    rows.append({"claim": "table1.full-attention-finetune.trained_params", "ours": everything,
                 "how": "all of it"})  # fmt: skip
    for claim, model, rank in LORAS:
        where = "queries and values" if model.startswith("mistral") else "the fused projection"
        rows.append({"claim": claim, "ours": lora_parameters(model, rank),
                     "how": f"LoRA of rank {rank} on {where}"})  # fmt: skip
    rows += [{"claim": claim, "ours": 0, "how": "nothing is trained"} for claim in UNTRAINED]
    rows += [{"claim": f"table7.{model}.k1.pairs_retained", "ours": 25.0,
              "how": "one of 4 groups that are equally full"}
             for model in ("gpt2-124m", "mistral-7b")]  # fmt: skip
    frame = pd.DataFrame(rows, columns=["claim", "ours", "how", "of_larger_whole"])
    also = [_printed(*ALSO[claim]) if claim in ALSO else None for claim in frame["claim"]]
    return frame.assign(also=also).astype({"ours": float, "of_larger_whole": float})


def _printed(name: str, key: str, value: Any, column: str) -> Any:
    """A figure of the paper."""
    return next(row[column] for row in table(name)["rows"] if row[key] == value)


def confound() -> pd.DataFrame:
    """The paper's Table 3 against both models that it could be compared with: perplexity of each
    row relative to the pretrained model, and to the model adapted by the better LoRA."""
    rows = [("pretrained", _printed("table1", "method", "pretrained", "ppl"))]
    rows += [(row["method"], row["ppl"]) for row in table("table3")["rows"]]
    frame = pd.DataFrame(rows, columns=["method", "ppl"])
    adapted = frame[frame["method"].str.startswith("lora")]["ppl"].min()
    return frame.assign(against_pretrained=frame["ppl"] / frame["ppl"].iloc[0] - 1,
                        against_adapted=frame["ppl"] / adapted - 1)  # fmt: skip


# One quantity, named in several tables of the paper: (quantity, table, row key, row, column).
FOCUS_PPL = "Focus on GPT-2 124M, PG-19, perplexity"
FULL_PPL = "Full fine-tuning of GPT-2 124M, PG-19, perplexity"
MISTRAL_PPL = "Mistral 7B with full attention, PG-19, T = 1024, perplexity"
PARAMETERS = "Router parameters of GPT-2 124M"
SAME_QUANTITY = (
    (FOCUS_PPL, "table1", "method", "focus", "ppl"),
    (FOCUS_PPL, "routing_dim", "R", 16, "ppl"),
    (FOCUS_PPL, "table2", "model", "gpt2-124m", "ppl_focus"),
    (FOCUS_PPL, "table3", "method", "focus-r16", "ppl"),
    (FOCUS_PPL, "table9", "value", 8, "centroid_ppl"),
    (FOCUS_PPL, "table10", "method", "focus", "ppl"),
    (FULL_PPL, "table1", "method", "full-attention-finetune", "ppl"),
    (FULL_PPL, "table5", "model", "gpt2-124m", "ppl_full_attention_ft"),
    (MISTRAL_PPL, "table2", "model", "mistral-7b", "ppl_pretrained"),
    (MISTRAL_PPL, "long_context", "context", 1024, "ppl_full"),
    (PARAMETERS, "table1", "method", "focus", "trained_params"),
    (PARAMETERS, "table3", "method", "focus-r16", "trained_params"),
)


def repeated() -> pd.DataFrame:
    """The paper's figures for one and the same quantity, table by table (all the paper's)."""
    rows = [(quantity, table(name)["source"], column, _printed(name, key, value, column))
            for quantity, name, key, value, column in SAME_QUANTITY]  # fmt: skip
    return pd.DataFrame(rows, columns=["quantity", "table", "column", "paper"])
