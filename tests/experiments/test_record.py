from __future__ import annotations

import json
import subprocess
from pathlib import Path
from types import SimpleNamespace

import pandas as pd
import pytest

from experiments import record
from experiments.record import Run


def read(path):
    return json.loads(path.read_text())


def test_a_run_writes_tables_and_what_produced_them(tmp_path):
    with Run(tmp_path / "topk/cell", {"method": {"name": "full"}}, [0, 2], "float32") as run:
        run.note("reason", "because")
        run.table(pd.DataFrame({"a": [1, 2]}), "table.csv")
    found = read(tmp_path / "topk/cell/run.json")
    assert found == record.of(tmp_path / "topk/cell")
    assert found["settings"] == {"method": {"name": "full"}}
    assert found["seeds"] == [0, 2]
    assert found["notes"] == {"reason": "because"}
    assert found["wall_seconds"] >= 0
    assert 10 < found["peak_memory_mb"] < 10**6
    assert found["versions"]["torch"].startswith("2.")
    assert found["hardware"]["cores"] >= 1
    assert found["hardware"]["cpu"]
    assert found["hardware"]["cpu_numbers"].count("/") == 2
    assert (tmp_path / "topk/cell/table.csv").read_text() == "a\n1\n2\n"


def test_a_run_that_fails_leaves_no_record_not_even_an_old_one(tmp_path):
    with Run(tmp_path / "leak", {}, [0]):
        pass
    assert record.of(tmp_path / "leak")["settings"] == {}
    with pytest.raises(RuntimeError), Run(tmp_path / "leak", {}, [0]):
        raise RuntimeError
    assert list((tmp_path / "leak").iterdir()) == []
    assert record.of(tmp_path / "leak") is None


def part_of(**changes):
    with Run("unused", {}, [0]).part() as took:
        pass
    return took | changes


def test_what_earlier_processes_made_counts(tmp_path):
    machine = {"cpu": "another"}
    earlier = [part_of(seconds=10.0, peak_memory_mb=9e6, hardware=machine),
               part_of(seconds=20.5, hardware=machine), part_of(seconds=0)]  # fmt: skip
    with Run(tmp_path, {}, [0]) as run:
        run.note("reason", "because")
        for each in earlier:
            run.earlier(each)
    found = read(tmp_path / "run.json")
    assert 30.5 <= found["wall_seconds"] < 32
    assert found["peak_memory_mb"] == 9e6
    assert found["peak_gpu_memory_mb"] == earlier[0]["peak_gpu_memory_mb"]
    assert found["notes"] == {"reason": "because", "earlier": {"parts": 3, "hardware": [machine]}}
    assert found["hardware"] != machine


def test_what_is_not_known_of_earlier_parts_is_said(tmp_path):
    other = {"id": "0" * 40, "dirty": True}
    with Run(tmp_path, {}, [0]) as run:
        run.earlier(part_of(commit=other))
        run.earlier(None)
    found = read(tmp_path / "run.json")
    assert found["wall_seconds"] is found["peak_memory_mb"] is None
    assert found["notes"]["earlier"]["commit"] == [other]
    assert found["notes"]["earlier"]["untold"].startswith("1 parts do not tell")


def test_of_several_processes_the_first_alone_writes(tmp_path, monkeypatch):
    for rank in ("1", "0"):
        monkeypatch.setenv("LOCAL_RANK", rank)
        with Run(tmp_path / rank, {}, [0]) as run:
            run.table(pd.DataFrame({"a": [1]}), "table.csv")
    assert [path.name for path in tmp_path.iterdir()] == ["0"]
    assert sorted(path.name for path in (tmp_path / "0").iterdir()) == ["run.json", "table.csv"]


def test_results_of_scales_lie_apart():
    assert record.results(SimpleNamespace(scale="gpu")) == Path("results/gpu")


def test_a_file_is_written_whole_or_not_at_all(tmp_path):
    path = tmp_path / "deep" / "file.json"
    record.write_json(path, {"x": 1})
    with pytest.raises(ValueError):
        record.write_json(path, {"x": float("nan")})
    assert read(path) == {"x": 1}
    assert [p.name for p in path.parent.iterdir()] == ["file.json"]


def git(folder, *arguments):
    subprocess.run(
        ["git", "-c", "user.name=x", "-c", "user.email=x@example.org", *arguments],
        cwd=folder, check=True, capture_output=True,
    )  # fmt: skip


def test_the_commit_is_dirty_only_where_code_differs(tmp_path, monkeypatch):
    (tmp_path / "results").mkdir()
    for name in ("code.py", "results/x.json", "dvc.lock", "params.yaml"):
        (tmp_path / name).write_text("1")
    monkeypatch.chdir(tmp_path)
    assert record.commit() == {"id": None, "dirty": None}
    git(tmp_path, "init", "-q")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-qm", "first")
    found = record.commit()
    assert len(found["id"]) == 40
    assert not found["dirty"]
    (tmp_path / "results/x.json").write_text("2")
    (tmp_path / "dvc.lock").write_text("2")
    (tmp_path / "params.yaml").write_text("2")  # run.json has the settings
    assert not record.commit()["dirty"]
    (tmp_path / "code.py").write_text("2")
    assert record.commit()["dirty"]
