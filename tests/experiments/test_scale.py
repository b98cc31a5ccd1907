"""A scale runs in a copy, which keeps its results and follows the tree."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from experiments import scale

PARAMS = "# settings\nscale: laptop            # or smoke\nseed: 0\n"


def git(folder: Path, *arguments: str) -> str:
    who = ("-c", "user.name=a", "-c", "user.email=a@b.c")
    done = subprocess.run(["git", *who, *arguments], cwd=folder, check=True, text=True,
                          stdout=subprocess.PIPE)  # fmt: skip
    return done.stdout.strip()


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    root = tmp_path / "tree"
    (root / "code").mkdir(parents=True)
    (root / "results/laptop").mkdir(parents=True)
    for name, text in {
        "params.yaml": PARAMS, "code/a.py": "a", "code/b.py": "b", "dvc.lock": "laptop",
        "results/laptop/rows.csv": "1", ".gitignore": "/data/\n/build/\n",
    }.items():  # fmt: skip
        (root / name).write_text(text)
    git(root, "init", "--quiet")
    git(root, "add", "--all")
    git(root, "commit", "--quiet", "-m", "one")
    monkeypatch.chdir(root)
    return root


def test_the_copy_is_of_the_scale_and_without_results(tree: Path) -> None:
    (tree / "new.py").write_text("not committed")
    copy = scale.copied("smoke")
    assert (copy / "params.yaml").read_text() == PARAMS.replace("laptop", "smoke", 1)
    assert (copy / "new.py").read_text() == "not committed"
    assert not (copy / "dvc.lock").exists()
    assert not (copy / "results").exists()
    assert (copy / "data/downloads").resolve() == tree / "data/downloads"
    assert git(tree, "status", "--porcelain") == "?? new.py"
    assert git(copy, "rev-parse", "HEAD") == git(tree, "rev-parse", "HEAD")


def test_a_second_time_it_follows_the_tree_and_keeps_what_it_made(tree: Path) -> None:
    copy = scale.copied("smoke")
    (copy / "dvc.lock").write_text("smoke")
    (copy / "results/smoke").mkdir(parents=True)
    (copy / "results/smoke/rows.csv").write_text("2")
    before = (copy / "code/b.py").stat().st_mtime_ns
    git(tree, "rm", "--quiet", "code/a.py")
    (tree / "code/c.py").write_text("c")
    git(tree, "add", "--all")
    git(tree, "commit", "--quiet", "-m", "two")
    assert scale.copied("smoke") == copy
    assert not (copy / "code/a.py").exists()
    assert (copy / "code/c.py").read_text() == "c"
    assert (copy / "code/b.py").stat().st_mtime_ns == before
    assert (copy / "dvc.lock").read_text() == "smoke"
    assert (copy / "results/smoke/rows.csv").read_text() == "2"
    assert git(copy, "rev-parse", "HEAD") == git(tree, "rev-parse", "HEAD")
    changed = git(copy, "status", "--porcelain", "--", ".", ":!results", ":!dvc.lock",
                  ":!params.yaml")  # fmt: skip
    assert changed == ""


def test_what_was_made_in_the_copy_is_not_lost(
    tree: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    copy = scale.copied("smoke")
    (copy / "notes.txt").write_text("mine")
    (copy / "code/b.py").write_text("mine, too")
    assert scale.main(["smoke"]) == 1
    assert "code/b.py was changed there" in capsys.readouterr().err
    assert (copy / "code/b.py").read_text() == "mine, too"
    (copy / "code/b.py").unlink()
    assert scale.main(["smoke"]) == 0
    assert (copy / "code/b.py").read_text() == "b"
    assert (copy / "notes.txt").read_text() == "mine"


def test_where_to_run(tree: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert scale.main([]) == scale.main(["laptop"]) == 0
    assert capsys.readouterr().out.split() == [".", "."]
    assert scale.main(["smoke"]) == 0
    assert capsys.readouterr().out.strip() == "build/smoke"
    assert scale.main(["moon"]) == 1
    assert "must be one of smoke, laptop" in capsys.readouterr().err
    (tree / "params.yaml").write_text("scale: [")
    assert scale.main(["smoke"]) == 1
    assert "params.yaml" in capsys.readouterr().err
