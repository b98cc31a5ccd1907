"""The stage that trains: what it leaves, what it does not do again, and what a kill costs."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from experiments import settings, texts, trained, training
from experiments.regimes.centroids import Centroids
from experiments.regimes.fitting import fit
from experiments.settings import Settings
from experiments.stages import train
from experiments.texts.training import TrainingData
from tests.experiments.training import CENTROIDS, LORA, ROOT, workspace

FILES = ("adapter/adapter_model.safetensors", "adapter/adapter_config.json", "train.csv")


def place(block: str, seed: int = 0, cell: str = "") -> Path:
    return Path(f"results/laptop/{block}/train/seed{seed}") / (cell or block)


def read(path: Path) -> Any:
    return json.loads(path.read_text())


def test_what_a_training_leaves(work: Any) -> None:
    chosen = work()
    training.train("adapted", 1, chosen)
    names = sorted(path.name for path in place("adapted", 1).iterdir())
    assert names == ["adapter", "run.json", "train.csv"]
    course, run = ((place("adapted", 1) / name).read_text() for name in ("train.csv", "run.json"))
    assert course.startswith("step,loss\n1,5.")
    assert len(course.splitlines()) == 1 + LORA["steps"]
    run = json.loads(run)
    assert run["notes"]["trained_parameters"] == 2 * 4 * (64 * 6 + 32 * 2)
    assert run["settings"] == trained.settings_of(chosen.cell("adapted"), 1, chosen)
    assert run["seeds"] == [1]
    assert run["dtype"] == "float32"
    assert run["notes"]["train_seconds"] > 0
    assert run["notes"]["inputs"]["texts"] == texts.fingerprint("letters", "train")
    assert not list(Path("checkpoints").rglob("*.ckpt"))


def test_a_cell_that_is_trained_is_left_alone_until_something_changes(
    work: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    def trains(chosen: Settings) -> bool:
        before = (place("adapted") / "run.json").stat().st_mtime_ns
        training.train("adapted", 0, chosen)
        return (place("adapted") / "run.json").stat().st_mtime_ns != before

    chosen = work()
    training.train("adapted", 0, chosen)
    assert not trains(chosen)
    assert "adapted, seed 0: is trained" in capsys.readouterr().out
    how = {"base": "plain", "seeds": [0, 1]}
    assert not trains(work(adapted={**how, "budgets": [], "core": True, "regime": LORA}))
    assert not trains(work(adapted={**how, "regime": {**LORA, "checkpoint_every": 2}}))
    slower = work(adapted={**how, "regime": {**LORA, "learning_rate": 0.005}})
    assert trains(slower)
    with Path("data/texts/letters/train.jsonl").open("a") as file:
        file.write(json.dumps({"title": "new", "file": "new.txt", "text": "ab" * 200}) + "\n")
    assert trains(slower)
    (place("adapted") / "run.json").unlink()
    (place("adapted") / "run.json").write_text("{}")
    assert trains(slower)


def test_a_plan_that_asks_for_nothing_is_kept_at_once_unless_settings_are_newer(
    work: Any, tmp_path: Path
) -> None:
    work()
    path = Path("data/plan/adapted/seed2.json")
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps({"status": "seed not asked for", "scale": "laptop"}))
    os.utime("params.yaml", (0, 0))
    assert train.main(["adapted", "--seed", "2"]) == 0
    folder = place("adapted", 2).parent
    assert read(folder / "run.json") == {"status": "seed not asked for"}
    (folder / "run.json").unlink()
    assert train.nothing("adapted", 2)
    assert (folder / "run.json").is_file()
    os.utime(path, (0, 0))
    os.utime("params.yaml")
    assert not train.nothing("adapted", 2)


def test_seeds_that_are_not_asked_for_and_nothing_to_train(work: Any) -> None:
    chosen = work(apart={"base": "adapted", "seeds": [1]})
    place("apart").mkdir(parents=True)
    training.train("apart", 0, chosen)
    assert [p.name for p in place("apart").parent.iterdir()] == ["run.json"]
    assert read(place("apart").parent / "run.json") == {"status": "seed not asked for"}
    training.train("plain", 0, chosen)
    assert read(place("plain").parent / "run.json") == {"status": "nothing to train"}


def test_every_cell_of_a_sweep_is_trained(work: Any) -> None:
    chosen = work(many={"base": "adapted", "sweep": {"regime.rank": [2, 3]}})
    training.train("many", 0, chosen)
    sizes = [read(place("many", cell=name) / "run.json")["notes"]["trained_parameters"]
             for name in ("many-rank2", "many-rank3")]  # fmt: skip
    assert sizes[1] * 2 == sizes[0] * 3


def test_the_command_names_the_field_that_is_wrong(
    work: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    work(odd={"base": "routed", "regime": {**CENTROIDS, "batch_size": 3, "devices": 2}})
    assert train.main(["odd", "--seed", "0"]) == 1
    assert "train: experiments.odd.regime.batch_size: 3 windows" in capsys.readouterr().err
    assert train.main(["missing", "--seed", "0"]) == 1
    assert "experiments.missing: no such experiment" in capsys.readouterr().err
    assert not Path("results").exists()


def test_a_killed_run_ends_as_an_undisturbed_one(
    tmp_path: Path, params: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    how = {**CENTROIDS, "steps": 60, "batch_size": 1, "validate_every": 20}
    long = {"long": {"base": "routed", "seeds": [0], "regime": how}}
    params["threads"] = 1
    calm, killed = tmp_path / "calm", tmp_path / "killed"
    for folder in (calm, killed):
        chosen = workspace(folder, params, long)
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "experiments.stages.train", "long", "--seed", "0"]
    with (killed / "log").open("w") as log:
        process = subprocess.Popen(command, cwd=killed, env=environment, stdout=log, stderr=log)
    monkeypatch.chdir(calm)
    training.train("long", 0, chosen)  # meanwhile
    deadline = time.monotonic() + 60
    while not list(killed.glob("checkpoints/**/step=*.ckpt")):
        assert process.poll() is None, (killed / "log").read_text()[-3000:]
        assert time.monotonic() < deadline
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert not (killed / place("long") / "run.json").exists()
    monkeypatch.chdir(killed)
    training.train("long", 0, chosen)
    for name in FILES:
        assert (calm / place("long") / name).read_bytes() == (place("long") / name).read_bytes()
    assert read(place("long") / "run.json")["notes"]["resumed_from_step"] >= 3


def test_two_runs_that_need_the_same_start_train_it_once(
    work: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    chosen = work()
    lock = Path("checkpoints/laptop/adapted/adapted/seed0.lock")
    lock.parent.mkdir(parents=True)
    with lock.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        other = threading.Thread(target=training.train, args=("recipe", 0, chosen))
        other.start()
        time.sleep(0.5)
        assert not Path("results").exists()
    other.join()
    assert (place("recipe") / "run.json").is_file()
    training.train("adapted", 0, chosen)
    assert "adapted, seed 0: is trained" in capsys.readouterr().out


def test_a_third_run_waits_where_the_first_has_removed_its_folder(tmp_path: Path) -> None:
    folder = tmp_path / "adapted/seed0"
    entered, leave = (threading.Event(), threading.Event()), threading.Event()

    def enter(mine: threading.Event) -> None:
        with training.alone(folder):
            mine.set()
            leave.wait(20)

    second, third = (threading.Thread(target=enter, args=(each,)) for each in entered)
    with training.alone(folder):
        folder.mkdir(exist_ok=True)
        second.start()
        time.sleep(0.3)
        shutil.rmtree(folder)
    assert entered[0].wait(20)
    third.start()
    assert not entered[1].wait(0.3)
    leave.set()
    second.join()
    third.join()
    assert entered[1].is_set()


def test_a_run_that_was_killed_when_it_had_trained_only_saves(work: Any, tmp_path: Path) -> None:
    chosen = work(even={"base": "routed", "regime": {**CENTROIDS, "checkpoint_every": 4}})
    cell, folder = chosen.cell("even"), tmp_path / "kept"
    first, second = (Centroids(cell, 0, chosen) for _ in range(2))
    assert fit(first, TrainingData(cell, 0, chosen), folder) is None
    assert fit(second, TrainingData(cell, 0, chosen), folder) == CENTROIDS["steps"]
    assert second.losses == first.losses
    assert second.timer.time_elapsed() == pytest.approx(first.timer.time_elapsed(), abs=1)
    pairs = zip(first.state_dict().values(), second.state_dict().values(), strict=True)
    assert all(torch.equal(own, other) for own, other in pairs)


def test_settings_are_read_from_the_folder_that_it_runs_in(work: Any) -> None:
    chosen = work()
    assert settings.load().cells("recipe") == chosen.cells("recipe")


def test_cells_of_a_sweep_can_be_trained_one_by_one(
    work: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    sweep = {"base": "plain", "regime": LORA, "sweep": {"regime.learning_rate": [0.001, 0.002]}}
    work(swept=sweep)
    names = [f"swept-learning_rate{rate}" for rate in (0.001, 0.002)]
    assert train.main(["swept", "--seed", "0", "--cell", names[1]]) == 0
    assert train.main(["swept", "--seed", "0", "--cell", "swept"]) == 1
    assert names[0] in capsys.readouterr().err
    assert [path.name for path in place("swept").parent.iterdir()] == [names[1]]
    assert train.main(["swept", "--seed", "0", "--cell", names[0]]) == 0
    assert "is trained" not in capsys.readouterr().out
    assert train.main(["swept", "--seed", "0"]) == 0
    said = capsys.readouterr().out
    assert all(f"{name}, seed 0: is trained" in said for name in names)
    assert all((place("swept").parent / name / "run.json").is_file() for name in names)
