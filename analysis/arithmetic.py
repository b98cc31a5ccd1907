"""What can be checked by counting alone: sizes of routers and of LoRA, and the paper's figures
against each other.

Written to `results/tables/` first; the rules then read these files like any other result.
"""

from __future__ import annotations

from typing import Any

import pandas as pd

from analysis.paper import Claim, claims, paper, printed


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
    """Figures that follow from a shape by counting, and what the paper prints elsewhere."""
    known, rows = paper()["counted"], []
    for claim, (model, dim, groups) in known["routers"].items():
        entry = paper()["models"][model]
        how = f"{entry['layers']} * ({entry['width']} * {dim} + {groups} * {dim})"
        rows.append((claim, router_parameters(model, dim, groups), how, None))
    for claim, (model, dim, groups) in known["shares"].items():
        total = paper()["models"][model]["parameters"]
        count = router_parameters(model, dim, groups)
        # GPT-2's printed shares fit another whole: the model with its routers of 768 dimensions.
        whole = total + (router_parameters(model, 768, groups) if model == "gpt2-124m" else 0)
        how = f"{count} of {total} parameters"
        rows.append((claim, round(100 * count / total, 4), how, round(100 * count / whole, 4)))
    for claim, (model, rank) in known["loras"].items():
        where = "queries and values" if model.startswith("mistral") else "the fused projection"
        rows.append((claim, lora_parameters(model, rank), f"LoRA of rank {rank} on {where}", None))
    rows += [(claim, count, how, None) for claim, (count, how) in known["plain"].items()]
    frame = pd.DataFrame(rows, columns=["claim", "ours", "how", "of_larger_whole"])
    also = [_elsewhere(claim) for claim in frame["claim"]]
    return frame.assign(also=also).astype({"ours": float, "of_larger_whole": float})


def _printed() -> dict[str, Claim]:
    return {claim.id: claim for claim in claims()}


def _elsewhere(claim: str) -> Any:
    """What the paper prints for the same quantity in another place, None where nothing."""
    for ids in paper()["repeated"].values():
        if claim in ids:
            return next(_printed()[name].paper for name in ids if name != claim)
    return None


def confound() -> pd.DataFrame:
    """Perplexities of the paper's Table 3 relative to the pretrained and to the adapted model."""
    rows = [("pretrained", _printed()["table1.pretrained.ppl"].paper)]
    rows += [(row["method"], row["ppl"]) for row in printed("table3")]
    frame = pd.DataFrame(rows, columns=["method", "ppl"])
    adapted = frame[frame["method"].str.startswith("lora")]["ppl"].min()
    return frame.assign(against_pretrained=frame["ppl"] / frame["ppl"].iloc[0] - 1,
                        against_adapted=frame["ppl"] / adapted - 1)  # fmt: skip


def repeated() -> pd.DataFrame:
    """The paper's figures for one and the same quantity, table by table (all the paper's)."""
    rows = [(quantity, _printed()[name].source, name, _printed()[name].paper)
            for quantity, ids in paper()["repeated"].items() for name in ids]  # fmt: skip
    return pd.DataFrame(rows, columns=["quantity", "table", "claim", "paper"])
