"""What a machine cannot do is refused, and a checkpoint is whole."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from experiments.regimes.fitting import Whole, latest, trainer
from experiments.settings.machine import refuse
from tests.experiments.training import CENTROIDS, LORA


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
