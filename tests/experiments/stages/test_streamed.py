"""Training on a streamed text as a user does it: fetched, listed, trained on, killed, gone on with,
by one process and, through the batch file, by several."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pandas as pd
import psutil
import pytest
import yaml

from experiments import settings, training
from experiments.settings import Settings
from experiments.stages import data
from tests.experiments.regimes.processes import wait_for
from tests.experiments.texts.library import shelf
from tests.experiments.training import CENTROIDS, ROOT, values

HOW = {**CENTROIDS, "steps": 40, "batch_size": 4, "checkpoint_every": 2}
BATCH = ROOT / "scales/slurm.sbatch"


@pytest.fixture
def workspaces(tmp_path: Path, params: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> Any:
    """Makes folders of that name with a streamed text, for one process and for two."""
    monkeypatch.setenv("FOCUS_DATA", str(tmp_path / "own"))
    shelf(tmp_path / "own/shelf", 3)
    params["threads"] = 1
    found = values(params, {
        "one": {"base": "routed", "seeds": [0], "texts": "shelf", "regime": HOW},
        "two": {"base": "one", "regime": {"devices": 2}},
    })  # fmt: skip
    found["texts"]["shelf"] = {"source": "shelf", "streamed": True, "min_characters": 1000}

    def made(name: str) -> tuple[Path, Settings]:
        folder = tmp_path / name
        folder.mkdir()
        monkeypatch.chdir(folder)
        (folder / "params.yaml").write_text(yaml.safe_dump(found, sort_keys=False))
        chosen = settings.load()
        data.make(["shelf"], chosen)
        return folder, chosen

    return made


def place(folder: Path, block: str) -> Path:
    return folder / f"results/laptop/{block}/train/seed0/{block}"


def killed(process: subprocess.Popen[bytes], folder: Path) -> None:
    """Kills a training, with all processes of its own, once it has a checkpoint."""
    wait_for(lambda: list(folder.glob("checkpoints/**/step=*.ckpt")), process, folder / "log")
    first = psutil.Process(process.pid)
    for each in (*first.children(recursive=True), first):  # torchrun's are in sessions of their own
        each.kill()
    process.wait()
    assert not list(folder.glob("results/**/run.json"))


def launched(command: list[str], folder: Path, **further: str) -> subprocess.Popen[bytes]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", **further}
    with (folder / "log").open("w") as log:
        return subprocess.Popen(command, cwd=folder, env=environment, stdout=log, stderr=log)


def test_a_killed_run_ends_as_an_undisturbed_one(
    workspaces: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    calm, chosen = workspaces("calm")
    training.train("one", 0, chosen)
    stopped, chosen = workspaces("stopped")
    command = [sys.executable, "-m", "experiments.stages.train", "one", "--seed", "0"]
    killed(launched(command, stopped), stopped)
    training.train("one", 0, chosen)
    run = json.loads((place(stopped, "one") / "run.json").read_text())
    assert run["notes"]["resumed_from_step"] >= 2
    for name in ("adapter/adapter_model.safetensors", "train.csv", "documents.csv"):
        first, second = ((place(folder, "one") / name).read_bytes() for folder in (calm, stopped))
        assert first == second, name
    seen = pd.read_csv(place(calm, "one") / "documents.csv")
    assert set(seen["shard"]) == {f"train/{number}.jsonl" for number in range(3)}
    assert seen["turn"].max() >= 1


def scheduler(folder: Path) -> dict[str, str]:
    """What a job of SLURM's has on one machine with two devices: environment and commands."""
    folder.mkdir()
    python = f'exec {sys.executable} "$@"'
    for name, does in (("srun", 'exec "$@"'), ("scontrol", "echo 127.0.0.1"), ("python", python)):
        (folder / name).write_text(f"#!/bin/sh\n{does}\n")
        (folder / name).chmod(0o755)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    return {"PATH": f"{folder}:{os.environ['PATH']}", "SLURM_JOB_ID": "7", "SLURM_NNODES": "1",
            "SLURM_JOB_NODELIST": "here", "SLURM_GPUS_ON_NODE": "2", "SLURM_CPUS_PER_TASK": "2",
            "PORT": port, "SCALE": "laptop"}  # fmt: skip


@pytest.mark.slow
@pytest.mark.timeout(400)  # torch is imported six times
def test_two_processes_of_the_batch_file_killed_and_started_again_train_what_one_does(
    workspaces: Any, tmp_path: Path
) -> None:
    one, chosen = workspaces("one")
    training.train("one", 0, chosen)
    two, _ = workspaces("two")
    subprocess.run(["bash", "-n", BATCH], check=True)
    command, environment = ["bash", str(BATCH), "two", "0"], scheduler(tmp_path / "bin")
    killed(launched(command, two, **environment), two)
    again = launched(command, two, **environment)
    assert again.wait(timeout=240) == 0, (two / "log").read_text()[-3000:]
    run = json.loads((place(two, "two") / "run.json").read_text())
    assert run["notes"]["resumed_from_step"] >= 2
    first, second = (place(one, "one"), place(two, "two"))
    assert (first / "documents.csv").read_bytes() == (second / "documents.csv").read_bytes()
    losses = [pd.read_csv(folder / "train.csv")["loss"].tolist() for folder in (first, second)]
    assert losses[1] == pytest.approx(losses[0], rel=1e-4)
