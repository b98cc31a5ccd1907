"""Stages prefill and continuation at their smallest, as dvc.yaml runs them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from experiments import plans, trained
from experiments.settings import Settings
from tests.experiments.training import ROOT, workspace

SHORT = {"model": "tiny-llama", "calibration": 1, "calibration_context": 64, "seconds": 0.1}


@pytest.fixture
def short(params: dict[str, Any]) -> dict[str, Any]:
    params["prefill"].update(SHORT, lengths=[96, 600], other_dtypes=["float32", "bfloat16"])
    params["continuation"].update(SHORT, contexts=[40, 300], new_tokens=4, most_repetitions=3)
    return params


@pytest.fixture
def chosen(tmp_path: Path, short: dict[str, Any]) -> Settings:
    return workspace(tmp_path, short)


def run(stage: str, folder: Path) -> pd.DataFrame:
    """A stage's table, by length."""
    command = [sys.executable, "-m", f"experiments.stages.{stage}"]
    subprocess.run(command, cwd=folder, env={**os.environ, "PYTHONPATH": str(ROOT)}, check=True)
    return pd.read_csv(folder / f"results/laptop/{stage}/table.csv").set_index("length")


def test_a_pass_stands_beside_what_its_pairs_allow(chosen: Settings, tmp_path: Path) -> None:
    every = run("prefill", tmp_path)
    assert list(every.index) == 2 * [96, 600]
    assert list(every["dtype"]) == 2 * ["float32"] + 2 * ["bfloat16"]
    assert (every[["full_s", "ours_s", "outside_s", "speedup"]] > 0).all(axis=None)
    table = every[every["dtype"] == "float32"]
    assert table.loc[600, "density"] < table.loc[96, "density"] == 1
    assert table.loc[96, "bound"] == pytest.approx(1)
    assert table.loc[600, "bound"] >= 1
    assert (table["speedup_low"] <= table["speedup"]).all()
    assert (table["share_of_bound"] == table["speedup"] / table["bound"]).all()
    told = json.loads((tmp_path / "results/laptop/prefill/run.json").read_text())
    assert told["dtype"] == "float32"
    assert told["settings"] == plans.measurement("prefill", chosen)


def test_generation_stands_beside_the_pretrained_models(chosen: Settings, tmp_path: Path) -> None:
    table = run("continuation", tmp_path)
    assert list(table.index) == [40, 300]
    assert (table[["full_s", "ours_s", "speedup"]] > 0).all(axis=None)
    assert (table["new_tokens"] == 4).all()


def test_experiments_are_trained_where_they_lack_and_all_take_turns(
    tmp_path: Path, short: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    blocks = {"timed": {"base": "routed", "seeds": [1]},
              "timed_wide": {"base": "timed", "method": {"window": 300}}}  # fmt: skip
    chosen = workspace(tmp_path, short, blocks, timed=list(blocks))
    for _ in range(2):
        table = run("prefill", tmp_path).query("dtype == 'float32'").loc[600]
        table = table.set_index("experiment")
        assert list(table.index) == ["timed", "timed_wide"]
    assert table["full_s"].nunique() == table["outside_s"].nunique() == 1
    assert table.loc["timed", "density"] < table.loc["timed_wide", "density"] < 1
    for name in table.index:
        assert trained.is_trained(chosen.cell(name), 1, chosen)
