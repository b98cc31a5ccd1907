"""The retrofit stage on a tiny model: frozen weights, resume after a kill, adapters that load."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from ruamel.yaml import YAML

import focus
from experiments.data import save_split
from experiments.lit import Centroids, warmup_cosine
from experiments.settings import RetrofitSettings
from tests.models import tiny, token_ids

ROOT = Path(__file__).resolve().parents[2]


def workspace(folder: Path, params: dict[str, Any], steps: int = 12) -> Path:
    """A folder in which the stages run as in the repository, on a tiny model and random books."""
    params["model"] = {"name": "tiny-llama", "dtype": "float32"}
    params["retrofit"].update(steps=steps, context=64, warmup_steps=2, checkpoint_every=3)
    params["protocol"].update(context=64, stride=64, documents=3, windows_per_document=2)
    params["bootstrap"]["samples"] = 200
    params["corpus"]["min_tokens"] = 128
    params["topk"] = {"ks": [1, 3], "balances": ["sinkhorn", "causal"]}
    params["leak"] = {"variants": ["small"], "balances": ["sinkhorn", "causal"], "documents": 3,
                      "trials": ["finalist"], "readings": ["symmetric.k1.n2"]}  # fmt: skip
    params["generation"] = {
        "variants": ["small"], "trials": ["finalist"], "readings": ["symmetric.k1.n2"],
        "questions": 2, "batch_size": 2, "new_tokens": 8, "long_prompt": 64, "long_tokens": 12,
    }  # fmt: skip
    params["variants"] = {"small": {"num_groups": 4, "top_k": 1, "window": 8, "sinks": 2}}
    params["prefill"] = {"lengths": [96, 600], "calibration": 1, "seconds": 0.1}
    params["continuation"] = {"contexts": [40, 300], "new_tokens": 4, "calibration": 1,
                              "seconds": 0.1, "most_repetitions": 3}  # fmt: skip
    params["controls"] = {
        "variant": "small", "kinds": ["random", "position", "token", "window"], "top_ks": [1],
        "calibration": 2,
    }  # fmt: skip
    small = {"context": 64, "stride": 64, "documents": 2, "windows_per_document": 1}
    params["recipe"] = {
        "search": small, "protocol": {**small, "documents": 3},
        "readings": [{"top_k": 1}, {"top_k": 1, "ngram": 2, "ngram_keys": 2}],
        "controls": ["random", "position", "token", "window", "oracle", "oracle_heads"],
        "calibration": 1, "retrofit": {"steps": 6},
        "base": {"num_groups": 4, "window": 8, "sinks": 2},
        "trials": {"searched": {}, "finalist": {
            "final": True, "controls": True, "seeds": [0, 1],
            "routers": "query_head", "probe": "multi_probe",
        }},
    }  # fmt: skip
    params["transfer"] = {"trial": "finalist", "sources": ["letters"], "context": 64,
                          "documents": 2, "windows_per_document": 1}  # fmt: skip
    params["copying"] = {"trials": ["finalist"], "context": 64, "documents": 3, "passage": 12,
                         "lead": 2, "distances": [20, 44], "controls": ["random"]}  # fmt: skip
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "params.yaml").open("w") as file:
        YAML().dump(params, file)
    data = folder / "data" / "corpus"
    data.mkdir(parents=True)
    generator = np.random.default_rng(0)
    for split, books in (("train", 4), ("validation", 2), ("test", 3)):
        documents = [
            (f"{split} {i}", generator.integers(0, 256, 400).tolist()) for i in range(books)
        ]
        save_split(data / f"{split}.npz", documents)
    (data / "corpus.json").write_text("{}")
    return folder


def start(folder: Path, stage: str, *arguments: str) -> subprocess.Popen:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", f"experiments.stages.{stage}", *arguments]
    with (folder / "log").open("w") as log:
        return subprocess.Popen(command, cwd=folder, env=environment, stdout=log, stderr=log)


def run(folder: Path, stage: str, *arguments: str) -> None:
    process = start(folder, stage, *arguments)
    assert process.wait(timeout=120) == 0, (folder / "log").read_text()[-3000:]


def test_a_killed_run_ends_as_an_undisturbed_one(tmp_path: Path, params: dict[str, Any]) -> None:
    calm = workspace(tmp_path / "calm", params, steps=60)
    killed = workspace(tmp_path / "killed", params, steps=60)
    run(calm, "retrofit", "--cell", "small")
    process = start(killed, "retrofit", "--cell", "small")
    deadline = time.monotonic() + 60
    while not list(killed.glob("checkpoints/retrofit/small/*/step=*.ckpt")):
        assert process.poll() is None, (killed / "log").read_text()[-3000:]
        assert time.monotonic() < deadline
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert not (killed / "results/retrofit/small/metrics.json").exists()
    run(killed, "retrofit", "--cell", "small")
    for name in ("metrics.json", "train.csv", "adapter/adapter_model.safetensors"):
        path = Path("results/retrofit/small") / name
        assert (calm / path).read_bytes() == (killed / path).read_bytes(), name
    assert '"resumed_from_step": null' not in (killed / path.parents[1] / "run.json").read_text()
    assert not list(killed.glob("checkpoints/retrofit/small/*"))


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from experiments.schema import read_yaml

    folder = workspace(tmp_path_factory.mktemp("trained"), read_yaml(ROOT / "params.yaml"))
    run(folder, "retrofit", "--cell", "small")
    return folder


def test_topk_writes_what_the_analysis_reads(trained: Path) -> None:
    run(trained, "topk", "--cell", "small")
    table = pd.read_csv(trained / "results/topk/small/table.csv")
    assert list(table["mode"]) == ["pretrained", "soft"] + ["hard"] * 3
    identity = table[(table["mode"] == "hard") & (table["top_k"] == 3)]
    assert (identity["density"] == 1.0).all()
    assert (identity["max_logit_difference"] < 1e-5).all()
    assert identity["delta"].abs().max() < 1e-6
    top1 = table[(table["mode"] == "hard") & (table["top_k"] == 1)]
    assert ((top1["density"] > 0) & (top1["density"] < 1)).all()
    assert (table["ppl_low"] <= table["ppl"]).all()
    assert (table["ppl"] <= table["ppl_high"]).all()
    documents = pd.read_csv(trained / "results/topk/small/documents.csv")
    assert len(documents) == 3 * len(table)
    assert not (trained / "checkpoints/topk/small.json").exists()


def test_leak_finds_the_future_in_sinkhorn_and_none_in_the_causal_balance(trained: Path) -> None:
    run(trained, "leak")
    table = pd.read_csv(trained / "results/leak/table.csv").groupby("balance")[["changed"]].max()
    assert table.loc["sinkhorn", "changed"] > 0
    assert table.loc["causal", "changed"] == 0
    costs = pd.read_csv(trained / "results/leak/perplexity.csv").set_index("balance")
    assert list(costs.index) == ["sinkhorn", "causal"]
    assert costs["window"].min() == 8 < costs["window"].max()  # one was widened to the other
    assert abs(costs.loc["sinkhorn", "density"] - costs.loc["causal", "density"]) < 0.03
    assert costs.loc["sinkhorn", ["versus_first", "versus_first_high"]].tolist() == [0.0, 0.0]
    assert costs.loc["causal", "versus_first_low"] < costs.loc["causal", "versus_first_high"]
    metrics = json.loads((trained / "results/leak/metrics.json").read_text())
    assert metrics["small.causal.delta"] == pytest.approx(costs.loc["causal", "delta"])


def test_controls_are_held_against_the_routed_mask_at_equal_density(trained: Path) -> None:
    run(trained, "controls")
    table = pd.read_csv(trained / "results/controls/table.csv").set_index("kind")
    assert set(table.index) == {"routed", "random", "position", "token", "window"}
    assert table.loc["routed", "versus_routed"] == 0
    assert table.loc["position", "distant_density"] == pytest.approx(0.25, abs=0.02)
    assert table.loc["window", "distant_density"] == 0
    assert table.loc["window", "window"] > 8
    difference = table.loc["window", "density"] - table.loc["routed", "density"]
    assert 0 <= difference < 0.05


def test_an_unknown_variant_is_refused_by_name(trained: Path) -> None:
    process = start(trained, "retrofit", "--cell", "missing")
    assert process.wait(timeout=60) != 0
    assert "variants.missing: no such variant" in (trained / "log").read_text()


def test_a_loss_that_is_not_finite_says_what_to_do() -> None:
    model = focus.attach(tiny("tiny-llama"), focus.FocusConfig(num_groups=4, window=8), seed=0)
    module = Centroids(model, RetrofitSettings(steps=2))
    with torch.no_grad():
        model.lm_head.weight.fill_(float("inf"))
    with pytest.raises(ValueError, match=r"retrofit\.learning_rate"):
        module.training_step({"input_ids": token_ids(1, 40)}, 0)


def test_schedule_rises_to_one_and_falls_to_zero() -> None:
    factors = [warmup_cosine(step, 10, 60) for step in range(61)]
    assert factors[0] == pytest.approx(0.1)
    assert max(factors) == factors[10] == 1.0
    assert factors[60] == pytest.approx(0.0)
    assert factors[10:] == sorted(factors[10:], reverse=True)
