"""What a machine cannot do is refused; several processes train what one does."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch

from experiments import trained, training
from experiments.regimes.fitting import Whole, latest, trainer
from experiments.settings.machine import refuse
from focus.hub import FocusAdapter
from tests.experiments.regimes.processes import free_port, train_in_two
from tests.experiments.training import CENTROIDS, LORA, ROOT


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"batch_size": 3, "devices": 2}, r"regime\.batch_size: 3 windows.*devices = 2"),
        ({"batch_size": 6, "devices": 2, "nodes": 2}, r"regime\.nodes: .* 4 processes, not 2"),
        ({"precision": "16-mixed", "strategy": "fsdp2"}, r"regime\.precision: 16-mixed needs"),
        ({"validate_every": 9}, r"regime\.validate_every: 9 is above steps = 4"),
    ],
)
def test_what_cannot_be_done_is_refused_by_field(
    work: Any, changes: dict[str, Any], message: str
) -> None:
    chosen = work(odd={"base": "adapted", "regime": {**LORA, **changes}})
    with pytest.raises(ValueError, match=rf"experiments\.odd\.{message}"):
        refuse(chosen.cell("odd"))


@pytest.mark.parametrize("changes", [{"strategy": "fsdp2"}, {"checkpoint_activations": True}])
def test_what_changes_modules_within_a_step_is_not_sharded_nor_run_again(
    work: Any, changes: dict[str, Any]
) -> None:
    chosen = work(
        near={"base": "plain", "method": {"name": "window"}, "regime": {**LORA, **changes}},
        control={"base": "routed", "regime": {**CENTROIDS, **changes, "shuffled": True}},
        usual={"base": "routed", "regime": {**CENTROIDS, **changes}},
    )
    refuse(chosen.cell("usual"))
    for name in ("near", "control"):
        with pytest.raises(ValueError, match=rf"{name}\.regime\.{next(iter(changes))}: .*alone"):
            refuse(chosen.cell(name))


def test_more_devices_than_there_are_cards(work: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    chosen = work(many={"base": "routed", "regime": {**CENTROIDS, "devices": 2}})
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    for started in (True, False):
        with pytest.raises(ValueError, match=r"experiments\.many\.regime\.devices: 2 asked for, 1"):
            refuse(chosen.cell("many"), started)
    several = {"devices": 2, "nodes": 2, "batch_size": 4, "precision": "16-mixed"}
    chosen = work(others={"base": "routed", "regime": {**CENTROIDS, **several}})
    refuse(chosen.cell("others"), started=False)  # a login node need not be one of these machines


def test_as_many_processes_as_nodes_have_devices(
    work: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    how = {**CENTROIDS, "batch_size": 4, "devices": 2}
    chosen = work(
        four={"base": "routed", "regime": {**how, "nodes": 2}},
        two={"base": "routed", "regime": how},
        odd={"base": "routed", "regime": {**how, "nodes": 2, "batch_size": 6}},
    )
    refuse(chosen.cell("two"))
    refuse(chosen.cell("routed"))
    monkeypatch.setenv("WORLD_SIZE", "4")
    refuse(chosen.cell("four"))
    refuse(chosen.cell("routed"))  # the first process trains it, while the others wait
    with pytest.raises(
        ValueError, match=r"two\.regime\.devices: .* 2 processes, not 4; scales/slurm"
    ):
        refuse(chosen.cell("two"))
    with pytest.raises(ValueError, match=r"batch_size: 6 .* shared by devices = 2 on nodes = 2"):
        refuse(chosen.cell("odd"))
    refuse(chosen.cell("two"), started=False)  # beforehand nobody knows how many there will be
    with pytest.raises(ValueError, match=r"batch_size: 6 .* shared by devices = 2 on nodes = 2"):
        refuse(chosen.cell("odd"), started=False)
    made = trainer(chosen.cell("two").regime, Path("checkpoints"))
    assert (made.num_nodes, made.num_devices, made.world_size) == (1, 2, 2)


def test_a_checkpoint_is_there_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "step=3.ckpt"
    Whole().save_checkpoint({"x": torch.ones(2)}, path)
    with pytest.raises(Exception, match="pickle"):
        Whole().save_checkpoint({"x": lambda: None}, path)
    assert torch.load(path)["x"].tolist() == [1, 1]
    assert [each.name for each in tmp_path.iterdir()] == ["step=3.ckpt"]


def test_a_checkpoint_that_was_cut_short_is_passed_over(tmp_path: Path) -> None:
    for step in (3, 12):
        Whole().save_checkpoint({"x": torch.ones(200)}, tmp_path / f"step={step}.ckpt")
    assert latest(tmp_path) == str(tmp_path / "step=12.ckpt")
    whole = (tmp_path / "step=12.ckpt").read_bytes()
    (tmp_path / "step=12.ckpt").write_bytes(whole[: len(whole) // 2])
    assert latest(tmp_path) == str(tmp_path / "step=3.ckpt")
    (tmp_path / "step=3.ckpt").write_bytes(b"")
    assert latest(tmp_path) is None


@pytest.mark.slow
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


@pytest.mark.slow
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


def wait_for(there: Callable[[], Any], process: subprocess.Popen[bytes], log: Path) -> None:
    """Until something is there, while the process runs."""
    deadline = time.monotonic() + 120
    while not there():
        assert process.poll() is None, log.read_text()[-3000:]
        assert time.monotonic() < deadline
        time.sleep(0.02)


def adapter(chosen: Any, name: str) -> dict[str, torch.Tensor]:
    folder = trained.weights(chosen.cell(name), 0, chosen)
    return FocusAdapter.from_pretrained(folder).tensors


def course(chosen: Any, name: str) -> list[float]:
    table = pd.read_csv(trained.weights(chosen.cell(name), 0, chosen).parent / "train.csv")
    assert list(table["validation_loss"].notna()) == [False, True, False, True]
    return table.fillna(0).to_numpy().flatten().tolist()
