"""Routers and weights that two processes train are those that one does, sharded or copied.

One file, and so one worker: two such tests at a time would be four processes on two cores."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from safetensors.torch import load_file

from experiments import trained, training
from focus.hub import FocusAdapter
from tests.experiments.regimes.processes import free_port, train_in_two, wait_for
from tests.experiments.regimes.test_joint import HOW, block
from tests.experiments.training import CENTROIDS, ROOT

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

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


def test_two_processes_train_the_routers_that_one_does(work: Any) -> None:
    how = {**CENTROIDS, "steps": 4, "batch_size": 2, "validate_every": 2}
    two = ("ddp", "fsdp2")
    blocks = {name: {"base": "routed", "regime": {**how, "devices": 2, "strategy": name}}
              for name in two}  # fmt: skip
    chosen = work(one={"base": "routed", "regime": how}, **blocks)
    train_in_two(two)
    training.train("one", 0, chosen)
    wanted = adapter(chosen, "one")
    start = trained.begin(chosen.cell("one"), 0, chosen)[0].focus_state.routers[0].projection
    assert (wanted["layers.0.projection"].float() - start).abs().max() > 0.01
    for name in two:
        found = adapter(chosen, name)
        assert found.keys() == wanted.keys()
        for key, tensor in wanted.items():
            assert torch.allclose(found[key].float(), tensor.float(), atol=2e-3), (name, key)
        assert course(chosen, name) == pytest.approx(course(chosen, "one"), rel=1e-4)


def test_a_killed_rank_ends_the_run_which_goes_on_when_started_again(
    work: Any, tmp_path: Path
) -> None:
    how = {**CENTROIDS, "steps": 60, "checkpoint_every": 2}
    base = {"base": "routed", "seeds": [0]}
    chosen = work(one={**base, "regime": how}, two={**base, "regime": {**how, "devices": 2}})
    first, log = launched(tmp_path, "two")
    wait_for(lambda: list(tmp_path.glob("checkpoints/**/step=*.ckpt")), first, log)
    ranks = subprocess.run(["pgrep", "-P", str(first.pid)], check=True, capture_output=True,
                           text=True).stdout.split()  # fmt: skip
    os.kill(int(ranks[-1]), signal.SIGKILL)
    assert first.wait(timeout=120) != 0
    assert "Signal 9 (SIGKILL)" in log.read_text()
    assert not trained.weights(chosen.cell("two"), 0, chosen).exists()
    second, log = launched(tmp_path, "two")
    assert second.wait(timeout=240) == 0, log.read_text()[-3000:]
    run = trained.weights(chosen.cell("two"), 0, chosen).parent / "run.json"
    assert json.loads(run.read_text())["notes"]["resumed_from_step"] >= 2
    training.train("one", 0, chosen)
    wanted, found = adapter(chosen, "one"), adapter(chosen, "two")
    for key, tensor in wanted.items():
        assert torch.allclose(found[key].float(), tensor.float(), atol=2e-3), key


def launched(folder: Path, block: str) -> tuple[subprocess.Popen[bytes], Path]:
    """torchrun with two processes that train a block, and the file that they write to."""
    port = free_port()
    log = folder / f"{port}.log"
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2",
               "--master-port", str(port), "-m", "experiments.stages.train", block,
               "--seed", "0"]  # fmt: skip
    with log.open("w") as file:
        return subprocess.Popen(command, cwd=folder, env=environment, stdout=file, stderr=file), log


def adapter(chosen: Any, name: str) -> dict[str, torch.Tensor]:
    folder = trained.weights(chosen.cell(name), 0, chosen)
    return FocusAdapter.from_pretrained(folder).tensors


def course(chosen: Any, name: str) -> list[float]:
    table = pd.read_csv(trained.weights(chosen.cell(name), 0, chosen).parent / "train.csv")
    assert list(table["validation_loss"].notna()) == [False, True, False, True]
    return table.fillna(0).to_numpy().flatten().tolist()
