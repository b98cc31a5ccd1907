"""A reading that is killed goes on from its last finished part."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import yaml

from experiments import settings
from experiments.settings import Settings
from experiments.stages import read as stage
from tests.experiments.training import ROOT

READ = Path("results/laptop/routed/read/search")
BUDGETS = [number / 16 for number in range(4, 16)]  # many parts, so that a kill comes among them


@pytest.fixture
def many(workspace: Settings, tmp_path: Path) -> Settings:
    """The trained folder, where the search has many parts."""
    assert workspace.scale == "laptop"
    path = tmp_path / "params.yaml"
    values: dict[str, Any] = yaml.safe_load(path.read_text())
    values["threads"] = 1
    values["experiments"]["routed"]["budgets"] = BUDGETS
    path.write_text(yaml.safe_dump(values, sort_keys=False))
    return settings.parse(values)


def test_a_killed_reading_ends_as_an_undisturbed_one(
    many: Settings, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    killed = tmp_path_factory.mktemp("killed") / "copy"
    shutil.copytree(tmp_path, killed)
    command = [sys.executable, "-m", "experiments.stages.read", "routed", "--reading", "search"]
    with (killed / "log").open("w") as log:
        process = subprocess.Popen(command, cwd=killed, env={**os.environ, "PYTHONPATH": str(ROOT)},
                                   stdout=log, stderr=log)  # fmt: skip
    deadline = time.monotonic() + 60
    while not parts(killed):
        assert process.poll() is None, (killed / "log").read_text()[-3000:]
        assert time.monotonic() < deadline
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.wait()
    stage.read("routed", many, "search")  # undisturbed
    found = parts(killed)
    assert 0 < len(found) < len(parts(tmp_path)) == 2 * (1 + len(BUDGETS))
    assert not (killed / READ).exists() or not list((killed / READ).glob("*.*"))
    before = {path: path.stat().st_mtime_ns for path in found}
    monkeypatch.chdir(killed)
    stage.read("routed", many, "search")
    assert (killed / READ / "rows.csv").read_bytes() == (tmp_path / READ / "rows.csv").read_bytes()
    assert {path: path.stat().st_mtime_ns for path in found} == before  # and are not made again
    run = json.loads((killed / READ / "run.json").read_text())
    assert run["notes"]["earlier"]["parts"] == len(found)
    assert run["wall_seconds"] > seconds(found)


def parts(folder: Path) -> list[Path]:
    """Finished parts."""
    return list((folder / stage.CHECKPOINTS).rglob("[!.]*.json"))


def seconds(paths: list[Path]) -> float:
    return sum(float(json.loads(path.read_text())["took"]["seconds"]) for path in paths)
