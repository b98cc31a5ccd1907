"""Routers and weights that two processes train are those that one does, sharded or copied."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from safetensors.torch import load_file

from experiments import trained, training
from tests.experiments.regimes.processes import train_in_two
from tests.experiments.regimes.test_joint import HOW, block

LATER = ["drift", "shift", "agreement"]  # are of what the run has seen since it went on
HERE = {**HOW, "batch_size": 2, "checkpoint_every": 10}
SCRATCH = {**HERE, "name": "scratch_joint", "weights_rate": 0.001}
ALONE = {
    "reads": block("sinkhorn", **HERE),
    "adds": block("softmax", **HERE),
    "moves": block("bias", **HERE),
    "remembers": block("causal", **HERE),
    "follows": block("ema", **HERE),
    "clusters": block("recluster", **HERE),
    "routers": block("ema", **{**HERE, "weights": False}),
    "scratch": block("sinkhorn", **SCRATCH),
}


def among_two(name: str, **changes: Any) -> dict[str, Any]:
    own = ALONE[name]
    two = {"devices": 2, "strategy": "fsdp2", **changes}
    return {**own, "regime": {**own["regime"], **two}}


@pytest.mark.slow
def test_two_processes_train_what_one_does(work: Any) -> None:
    pairs = {f"two_{name}": name for name in ALONE}
    two = {each: among_two(name) for each, name in pairs.items()}
    two["copied"] = among_two("follows", strategy="ddp")
    two["killed"] = among_two("follows", checkpoint_every=2, checkpoint_activations=True)
    two["again"] = among_two("scratch", checkpoint_activations=True)
    pairs |= {"copied": "follows", "killed": "follows", "again": "scratch"}
    chosen = work(**ALONE, **two)
    with pytest.raises(Exception, match="exit code 1"):
        train_in_two(["killed"], kill_at=4)
    train_in_two(list(two))
    for name in ALONE:
        training.train(name, 0, chosen)
    for each, name in pairs.items():
        same_weights(chosen, each, name)
        same_course(chosen, each, name, LATER if each == "killed" else [])
    run = json.loads((of(chosen, "killed") / "run.json").read_text())
    assert run["notes"]["resumed_from_step"] == 2


def of(chosen: Any, name: str) -> Path:
    return trained.folder(chosen.cell(name), 0, chosen)


def same_weights(chosen: Any, found: str, wanted: str) -> None:
    """To rounding; of k-means to one token that lies between two groups: on some processors
    rounding decides where it goes."""
    start = dict(trained.begin(chosen.cell(wanted), 0, chosen)[0].named_parameters())
    ours, theirs = (of(chosen, name) / "adapter" for name in (found, wanted))
    files = sorted(path.name for path in theirs.glob("*.safetensors"))
    assert sorted(path.name for path in ours.glob("*.safetensors")) == files
    for file in files:
        tensors = load_file(ours / file)
        expected = load_file(theirs / file)
        assert tensors.keys() == expected.keys()
        for key, tensor in expected.items():
            near = 0.02 if wanted == "clusters" and "centroids" in key else 1e-3
            assert torch.allclose(tensors[key].float(), tensor.float(), atol=near), (found, key)
            if tensor.dim() > 1 and key in start:
                assert (start[key] - tensor.float()).abs().max() > 2e-3, (wanted, key)


def same_course(chosen: Any, found: str, wanted: str, but: list[str]) -> None:
    for file in ("train.csv", "groups.csv"):
        ours, theirs = (pd.read_csv(of(chosen, name) / file).drop(columns=but, errors="ignore")
                        for name in (found, wanted))  # fmt: skip
        near = 0.1 if wanted == "clusters" else 1e-4  # a token, and what follows from its place
        pd.testing.assert_frame_equal(ours, theirs, rtol=near, atol=1e-5)
