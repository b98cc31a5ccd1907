"""A block in params.yaml is all that an experiment takes: trained, read, in tables and figures."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import yaml

from analysis import figures, tables
from analysis.results import Results
from experiments import settings
from experiments.stages.read import read
from experiments.training import train
from tests.experiments import training

BASE = {"model": "tiny-llama", "dtype": "float32", "texts": "letters", "readings": ["search"],
        "seeds": [0], "method": {"name": "full"}}  # fmt: skip
SHORT = {"context": 64, "steps": 2, "warmup_steps": 1}
FIRST = {
    "plain": BASE,
    "routed": {"base": "plain", "method": training.ROUTED, "budgets": [0.25],
               "regime": training.CENTROIDS | SHORT, "against": ["plain"]},
}  # fmt: skip
ADDED: dict[str, Any] = {
    "ablation": {"base": "routed", "sweep": {"window": [4, 16]}, "against": ["routed"]},
    "rival": {"base": "plain", "method": {"name": "quest"}, "budgets": [0.25],
              "against": ["plain", "routed"]},
    "lora": {"base": "plain", "regime": training.LORA | SHORT, "against": ["plain"]},
    "other": {"base": "plain", "model": "tiny-gpt2"},
    "other_routed": {"base": "routed", "model": "tiny-gpt2", "against": ["other"]},
}  # fmt: skip
READING = {"kind": "perplexity", "texts": ["letters"], "side": "validation", "documents": 2,
           "context": 64}  # fmt: skip


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Results:
    root = tmp_path_factory.mktemp("blocks")
    params = settings.read_yaml(Path(__file__).parents[1] / "params.yaml")
    values = training.values(params) | {"readings": {"search": READING}, "seeds": [0]}
    values["experiments"] = {**FIRST, **ADDED}
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(root)
        training.write_texts(root)
        (root / "params.yaml").write_text(yaml.safe_dump(values, sort_keys=False))
        chosen = settings.parse(values)
        for block in chosen.experiments:
            train(block, 0, chosen)
            read(block, chosen)
    return Results.of(chosen, root / "results")


@pytest.mark.slow
def test_each_block_stands_in_the_tables(results: Results) -> None:
    rows = tables.TABLES["quality"](results)
    found = {(row.cell, row.against) for row in rows[rows["condition"] != "soft"].itertuples()}
    assert found == {
        ("routed", "plain"), ("ablation-window4", "routed"), ("ablation-window16", "routed"),
        ("rival", "plain"), ("rival", "routed"), ("lora", "plain"), ("other_routed", "other"),
    }  # fmt: skip
    assert rows["change"].notna().all()
    trained = set(tables.TABLES["training"](results)["cell"])
    assert trained == {"routed", "ablation-window4", "ablation-window16", "lora", "other_routed"}


@pytest.mark.slow
def test_each_block_stands_in_the_figures(results: Results, tmp_path: Path) -> None:
    made = {path.name for path in figures.write(results, tmp_path)}
    assert {"searches.png", "training.png"} <= made
    drawn = (tmp_path / "searches.svg").read_text()
    for name in ("window of 4", "window of 16", "Quest"):
        assert name in drawn
    table = pd.read_csv(results.root / "ablation/read/search/rows.csv")
    assert set(table["cell"]) == {"ablation-window4", "ablation-window16"}
