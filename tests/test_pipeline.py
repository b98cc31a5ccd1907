"""dvc.yaml: its stages are those of params.yaml, results are of a stage, and nothing runs twice."""

from __future__ import annotations

import csv
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from dvc.repo import Repo

from experiments import plans, settings, trained
from experiments.settings import Settings
from experiments.stages.plan import planned
from tests.experiments.training import values

ROOT = Path(__file__).resolve().parents[1]
ELSEWHERE = "results/gpu/*.json"  # by the GPU harness on another machine, which is no stage
SHOWN = ("seeds", "readings", "against", "core")  # of a cell, what its rows do not depend on


@pytest.fixture(scope="module")
def chosen() -> Settings:
    return settings.load(ROOT / "params.yaml", overlays=ROOT / "scales")


def tracked(folder: str) -> list[str]:
    listed = subprocess.run(["git", "ls-files", "-z", folder], cwd=ROOT, check=True, text=True,
                            stdout=subprocess.PIPE)  # fmt: skip
    return [path for path in listed.stdout.split("\0") if path and (ROOT / path).is_file()]


RESULTS = [path for path in tracked("results") if not Path(path).match(ELSEWHERE)]
RUNS = [path for path in RESULTS if path.endswith("/run.json")]
BLOCKS = sorted({Path(path).parts[2] for path in RUNS})  # measurements are blocks, too


@pytest.fixture(scope="module")
def stages() -> dict[str, Any]:
    """DVC's stages by name."""
    return {stage.addressing: stage for stage in Repo(str(ROOT)).index.stages}


def test_every_experiment_and_seed_has_its_stages(chosen: Settings, stages: Any) -> None:
    wanted = {"plan", "view", "analysis", *plans.MEASUREMENTS}
    for block in chosen.experiments:
        wanted |= {f"data@{block}", f"read@{block}"}
        wanted |= {f"train@{block}-{seed}" for seed in chosen.seeds}
    assert set(stages) == wanted


def test_trained_weights_in_git_stay_small() -> None:
    """A clone brings them all; .gitignore lists those that are trained again instead."""
    weights = [ROOT / path for path in RESULTS if path.endswith(".safetensors")]
    assert weights
    assert sum(path.stat().st_size for path in weights) <= 40e6


@pytest.mark.timeout(600)
def test_every_plan_that_a_stage_depends_on_is_written(chosen: Settings, stages: Any) -> None:
    needed = {str(dep) for stage in stages.values() for dep in stage.deps}
    asked = {name.removeprefix("data/plan/") for name in needed if name.startswith("data/plan/")}
    assert asked == set(planned(chosen))


def test_the_pipeline_is_read_from_top_to_bottom() -> None:
    assert len((ROOT / "dvc.yaml").read_text().splitlines()) <= 250


@pytest.mark.timeout(600)
def test_every_result_is_in_the_lock_of_a_stage(stages: Any) -> None:
    path = ROOT / "dvc.lock"
    text = path.read_text() if path.is_file() else "stages: {}"
    lock = yaml.load(text, yaml.CSafeLoader)["stages"]
    assert set(lock) <= set(stages), "dvc.lock has stages that dvc.yaml does not have"
    outs = {Path(out["path"]) for stage in lock.values() for out in stage.get("outs", [])}
    alone = [path for path in RESULTS if outs.isdisjoint((Path(path), *Path(path).parents))]
    assert not alone, "no stage of dvc.lock made these"


@pytest.mark.parametrize("block", BLOCKS)
def test_every_result_is_of_committed_code_and_these_settings(block: str, chosen: Settings) -> None:
    for path in (path for path in RUNS if Path(path).parts[2] == block):
        try:
            check_run(path, chosen)
        except AssertionError as error:
            error.add_note(path)
            raise


def check_run(path: str, chosen: Settings) -> None:
    told = json.loads((ROOT / path).read_text())
    scale, name, *rest = Path(path).parts[1:-1]
    assert scale == chosen.scale
    if "status" not in told:
        before = told["notes"].get("earlier", {}).get("commit", [])
        for each in (told["commit"], *before):
            assert each["dirty"] is False, f"{path}: made by code that was not committed"
    if name in plans.MEASUREMENTS:
        assert told["settings"] == plans.measurement(name, chosen)
    elif rest[0] == "train":
        check_training(told, name, rest[1:], chosen)
    else:
        check_reading(told["settings"], name, rest[1], chosen)


def check_training(told: dict[str, Any], block: str, place: list[str], chosen: Settings) -> None:
    """A seed's folder, or a cell's in it."""
    seed = int(place[0].removeprefix("seed"))
    cells = {name: cell for name, cell in chosen.cells(block).items()
             if seed in cell.seeds and cell.trains}  # fmt: skip
    if len(place) == 1:
        assert not cells, f"{block} seed {seed}: {told['status']}, but params.yaml asks for it"
    else:
        assert told["settings"] == trained.settings_of(cells[place[1]], seed, chosen)


def check_reading(told: dict[str, Any], block: str, reading: str, chosen: Settings) -> None:
    """A reading's settings, and those of the cells that it read."""
    assert told["reading"] == chosen.readings[reading].plain()
    cells = {name: known(cell.plain()) for name, cell in chosen.cells(block).items()
             if reading in cell.readings}  # fmt: skip
    assert {name: known(cell) for name, cell in told["cells"].items()} == cells


def known(cell: dict[str, Any]) -> dict[str, Any]:
    """Of a cell's settings, those on which its rows depend."""
    regime = {key: value for key, value in cell["regime"].items() if key not in trained.HARMLESS}
    return {**{key: value for key, value in cell.items() if key not in SHOWN}, "regime": regime}


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """This one's code with tiny experiments, committed, where the recipe was trained and read."""
    folder = tmp_path_factory.mktemp("pipeline")
    root = folder / "first"
    folders = ("analysis", "experiments", "focus", "scales", ".dvc")
    for path in (*(path for name in folders for path in tracked(name)), ".gitignore", ".dvcignore",
                 "dvc.yaml"):  # fmt: skip
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / path, root / path)
    params = yaml.safe_load((ROOT / "params.yaml").read_text())
    own = values(params)
    names = ("plain", "adapted", "recipe")
    tiny = {"kind": "perplexity", "texts": ["letters"], "documents": 3, "context": 64}
    own |= {"seeds": [0], "readings": {"search": tiny},
            "experiments": {**{name: own["experiments"][name] for name in names}}}  # fmt: skip
    own["experiments"]["adapted"]["seeds"] = [0]
    routed = values(params)["experiments"]["routed"]
    own["experiments"]["recipe"] = {**routed, "start": "adapted", "seeds": [0],
                                     "against": ["adapted"]}  # fmt: skip
    own["texts"]["letters"].update(min_characters=100, validation_every=2)
    for name in ("adapted", "recipe"):
        block = own["experiments"][name]
        block["regime"] = {**block["regime"], "steps": 2, "warmup_steps": 1}
    (root / "params.yaml").write_text(yaml.safe_dump(own, sort_keys=False))
    letters = folder / "texts/letters"
    letters.mkdir(parents=True)
    for number in range(16):
        word = f"{chr(97 + number)}{number} {number * 37 % 100} "
        (letters / f"{number}.txt").write_text((word * 60 + "\n") * 3)
    git(root, "init", "--quiet")
    commit(root)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FOCUS_DATA", str(folder / "texts"))
        first = dvc(root, "repro", "read@recipe")
        assert ran(first) == ["plan", "data@recipe", "train@recipe-0", "read@recipe"]
        yield root


def git(folder: Path, *arguments: str) -> None:
    who = ("-c", "user.name=a", "-c", "user.email=a@b.c")
    subprocess.run(["git", *who, *arguments], cwd=folder, check=True)


def commit(folder: Path) -> None:
    git(folder, "add", "--all")
    git(folder, "commit", "--quiet", "-m", "more")


def dvc(folder: Path, *arguments: str) -> str:
    """What it prints; the stages that it ran are told as `Running stage 'NAME'`."""
    environment = {**os.environ, "DVC_NO_ANALYTICS": "1",
                   "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}  # fmt: skip
    done = subprocess.run(
        [sys.executable, "-m", "dvc", *arguments], cwd=folder, env=environment, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout
    return done.stdout


def ran(printed: str) -> list[str]:
    return [line.split("'")[1] for line in printed.splitlines() if line.startswith("Running stage")]


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_clone_makes_its_data_and_runs_nothing_that_is_there(repository: Path,
                                                              tmp_path: Path) -> None:  # fmt: skip
    weights = "results/laptop/adapted/train/seed0/adapted/adapter"
    assert (repository / weights).is_dir()  # trained on the way: the recipe starts from it
    assert "adapted, seed 0: is trained" in dvc(repository, "repro", "train@adapted-0")
    assert "up to date" in dvc(repository, "status", "read@recipe", "train@adapted-0")
    commit(repository)
    clone = tmp_path / "clone"
    git(tmp_path, "clone", "--quiet", str(repository), str(clone))
    assert ran(dvc(clone, "repro", "read@recipe")) == ["plan", "data@recipe"]
    # What lacks is made again, and what was made of it is looked at.
    shutil.rmtree(clone / "results/laptop/recipe/train/seed0/recipe/adapter")
    assert ran(dvc(clone, "repro", "read@recipe")) == ["train@recipe-0", "read@recipe"]
    # Settings of another stage are looked at by the plan alone.
    params = (clone / "params.yaml").read_text()
    (clone / "params.yaml").write_text(params.replace("threads: 2", "threads: 1"))
    assert ran(dvc(clone, "repro", "read@recipe")) == ["plan"]


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_setting_is_tried_without_an_edit_and_compared(repository: Path) -> None:
    dvc(repository, "repro", "read@adapted")
    dvc(repository, "repro", "--single-item", "analysis")
    commit(repository)
    stages = ["plan", "data@recipe", "train@recipe-0", "read@recipe", "analysis"]
    changed = "experiments.recipe.method.window"
    printed = dvc(repository, "exp", "run", "--temp", "--single-item", "--name", "narrow", "-S",
                  f"{changed}=4", *stages)  # fmt: skip
    assert ran(printed) == stages
    assert (repository / "params.yaml").read_text() == (clean := committed(repository))
    assert "window: 8" in clean
    table = list(csv.DictReader(dvc(repository, "exp", "show", "--csv").splitlines()))
    tried = next(row for row in table if row["Experiment"] == "narrow")
    before = next(row for row in table if row["rev"] == "workspace")
    assert (before[changed], tried[changed]) == ("8", "4")
    kept = "experiments.recipe.distant_pairs"  # a narrower window has other distant pairs
    assert 0 < float(before[kept]) != float(tried[kept]) > 0
    dvc(repository, "plots", "diff", "narrow", "--out", "drawn")
    assert "narrow" in (repository / "drawn/index.html").read_text()


def committed(folder: Path) -> str:
    """params.yaml as the last commit has it."""
    return subprocess.run(["git", "show", "HEAD:params.yaml"], cwd=folder, text=True, check=True,
                          stdout=subprocess.PIPE).stdout  # fmt: skip
