"""Every method from params.yaml to rows: on an adapted model, and trained by LoRA."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from experiments.stages.read import read
from experiments.training import train
from tests.experiments import training

NEAR = {"window": 8, "sinks": 2}
CASES: dict[str, tuple[dict[str, Any], list[float]]] = {
    "window": ({"trained_at": 0.5}, [0.5]),
    "position": ({"trained_at": 0.5}, [0.5]),
    "token": ({}, [0.5]),
    "random": ({}, [0.5]),
    "oracle_heads": ({}, [0.5]),
    "ngram": ({}, []),
    "csa": ({}, [0.5]),
    "magicpig": ({"bits": 2}, [0.5]),
    "quest": ({"block": 2}, [0.5]),
    "performer": ({}, []),
    "seer": ({"block": 2, "dim": 4}, [0.5]),
}
LORA = {**training.LORA, "steps": 2}
DISTIL = {"name": "distil", "steps": 2, "context": 64, "learning_rate": 0.01, "warmup_steps": 1}


def experiment(name: str, regime: dict[str, Any] | None, start: str | None) -> dict[str, Any]:
    fields, budgets = CASES[name]
    return {"base": "plain", "start": start, "method": {"name": name, **NEAR, **fields},
            "budgets": budgets, "regime": regime}  # fmt: skip


def test_methods_are_read_on_an_adapted_model_and_trained_by_lora(
    tmp_path: Path, params: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    blocks = {name: experiment(name, None, "adapted") for name in CASES}
    blocks["trained"] = experiment("window", LORA, None)
    blocks["trained_seer"] = experiment("seer", DISTIL, "adapted")
    blocks["trained_position"] = experiment("position", LORA, "adapted")
    how = {"documents": 2, "windows": 2, "context": 96}
    params["readings"]["search"] = {**params["readings"]["search"], **how}
    chosen = training.workspace(tmp_path, params, blocks)
    monkeypatch.chdir(tmp_path)
    train("adapted", 0, chosen)
    for name in blocks:
        if name.startswith("trained"):
            train(name, 0, chosen)
        read(name, chosen, "search")
        rows = pd.read_csv(f"results/laptop/{name}/read/search/rows.csv")
        assert rows["nll"].gt(0).all()
        assert rows["window"].ge(8).all() or rows["method"].eq("performer").all()
        kept = rows["distant_density"]
        assert kept.ge(0.4 if blocks[name]["budgets"] else 0.0).all()
        assert kept.lt(0.9).all() or rows["method"].eq("performer").all()
