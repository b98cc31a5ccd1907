"""Adapters saved before format 2: ``config.json`` and ``adapter.safetensors``, 25 settings."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from focus.config import FocusConfig

CONFIG_FILE = "config.json"
WEIGHTS_FILE = "adapter.safetensors"
FORMAT = 1

# (routers, sides, balanced_sides, similarity) -> routers. Fields that a config left out had the
# values of OLD.
ROUTERS = {
    ("layer", "one", "both", "cosine"): "layer",
    ("layer", "one", "both", "dot"): "paper",
    ("kv_head", "two", "both", "cosine"): "key_head",
    ("kv_head", "query_heads", "keys", "cosine"): "query_head",
}
OLD = {
    "routers": "layer", "sides": "one", "balanced_sides": "both", "similarity": "cosine",
    "gate": "log", "gate_probes": 1, "gate_keys": "soft", "gate_steepness": 8.0,
    "balance": "causal", "potentials": "frozen", "training_balance": "sinkhorn",
    "lag_tokens": 1024, "lag_stride": 256, "probe": "symmetric", "top_k": 1,
}  # fmt: skip
SPLIT = ("routers", "sides", "balanced_sides", "similarity")
DROPPED = ("gate_probes", "gate_keys", "gate_steepness", "training_balance", "lag_tokens",
           "lag_stride", "potentials")  # fmt: skip


def config_of(values: Mapping[str, Any]) -> tuple[FocusConfig, list[str]]:
    """The config that an old one stands for, and what is to be said about it.

    Fields that only matter in training are dropped, with a note where training would go on
    otherwise than it did.

    Raises:
        ValueError: what it asks for is gone.
    """
    old = {**OLD, **values}
    split = tuple(old[name] for name in SPLIT)
    if split not in ROUTERS:
        named = ", ".join(f"{name} = {old[name]!r}" for name in SPLIT)
        raise ValueError(f"adapter: of an earlier version, with {named}, which is gone; train anew")
    if old["balance"] == "causal" and old["potentials"] != "frozen":
        raise ValueError(
            f"adapter: of an earlier version, with potentials = {old['potentials']!r}, which are "
            "gone; train anew"
        )
    kept = {k: v for k, v in old.items() if k not in (*SPLIT, *DROPPED)}
    if kept["gate"] == "sparse_log":
        kept["gate"] = "log"
    config = FocusConfig.from_dict({**kept, "routers": ROUTERS[split]})
    return config, _notes(old, config)


def _notes(old: Mapping[str, Any], config: FocusConfig) -> list[str]:
    multi = config.probe == "multi_probe"
    implied = {
        "gate": config.gate,
        "gate_probes": config.top_k if multi else 1,
        "gate_keys": "hard" if multi else "soft",
        "gate_steepness": OLD["gate_steepness"],
        "training_balance": "sinkhorn",
    }
    return [
        f"trained with {name} = {old[name]!r}, further training takes {value!r}"
        for name, value in implied.items()
        if old[name] != value
    ]


def tensors_of(tensors: Mapping[str, Tensor], config: FocusConfig) -> dict[str, Tensor]:
    """Tensors in today's units: potentials were added to scores over the temperature, and are now
    added to the scores."""
    return {
        name: tensor * config.temperature if name.endswith(".potentials") else tensor
        for name, tensor in tensors.items()
    }
