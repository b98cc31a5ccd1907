"""Code that a stage imports, found by reading it."""

from __future__ import annotations

from pathlib import Path

import pytest

from experiments import imports
from experiments.imports import ROOT, SUFFIXES, code, digits, effective, same


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    files = {
        "focus/gates.py": "x = 1\n",
        "experiments/__init__.py": "",
        "experiments/methods/__init__.py": "",
        "experiments/methods/one.py": "from experiments.methods.base import Method\n",
        "experiments/methods/other.py": "import experiments.methods.base\n",
        "experiments/methods/base.py": "def f():\n    from experiments import trained\n",
        "experiments/trained.py": "from experiments import record, settings\n",
        "experiments/record.py": "",
        "experiments/settings/__init__.py": "",
    }
    for name, text in files.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path


def test_what_is_imported_counts_and_nothing_else(tree: Path) -> None:
    found = code(["experiments.methods.one"], tree)
    assert set(found) == {
        "experiments/methods/one.py", "experiments/methods/__init__.py",
        "experiments/methods/base.py", "experiments/trained.py", "focus",
    }  # fmt: skip


@pytest.mark.parametrize(("name", "changes"), [
    ("experiments/trained.py", True), ("focus/gates.py", True),
    ("experiments/methods/other.py", False), ("experiments/settings/__init__.py", False),
])  # fmt: skip
def test_a_change_shows_where_it_counts(tree: Path, name: str, changes: bool) -> None:
    before = code(["experiments.methods.one"], tree)
    (tree / name).write_text((tree / name).read_text() + "y = 2\n")
    assert (code(["experiments.methods.one"], tree) != before) == changes


def test_words_about_code_are_no_code() -> None:
    plain = "def f(x):\n    return x\n"
    told = '"""A module."""\n\n# why\ndef f(x):\n    """Says\n    more."""\n\n    return x\n'
    assert effective(told) == effective(plain)
    assert effective(plain) != effective(plain.replace("return x", "return -x"))


def test_a_file_that_is_imported_no_more_counts_as_it_was(
    tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = code(["experiments.methods.one"], tree)
    (tree / "experiments/methods/base.py").write_text("def f():\n    pass\n")
    now = code(["experiments.methods.one"], tree)
    assert before.keys() - now.keys() == {"experiments/trained.py"}
    gone = {"experiments/trained.py": before["experiments/trained.py"]}
    monkeypatch.setattr(imports, "gone", lambda: {"experiments/methods/base.py": gone})
    assert code(["experiments.methods.one"], tree) == gone | now
    assert code(["experiments.record"], tree).keys() & gone.keys() == set()


def test_an_unknown_module_is_refused(tree: Path) -> None:
    with pytest.raises(ValueError, match=r"experiments\.methods\.none: no such module"):
        code(["experiments.methods.none"], tree)


def test_a_change_that_was_seen_to_change_no_row_counts_as_none(
    tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = code(["experiments.methods.one"], tree)
    (tree / "focus/gates.py").write_text("x = 2\n")
    now = code(["experiments.methods.one"], tree)["focus"]
    assert now != before["focus"]
    listed = tmp_path / "same.yaml"
    listed.write_text(f"- files: {{focus: {{now: '{now}', as: '{before['focus']}'}}}}\n")
    monkeypatch.setattr(imports, "SAME", listed)
    same.cache_clear()
    assert code(["experiments.methods.one"], tree) == before
    (tree / "focus/gates.py").write_text("x = 3\n")
    assert code(["experiments.methods.one"], tree) != before
    same.cache_clear()


def test_no_listed_change_is_dead() -> None:
    for file, now in same():
        suffixes = {"focus": SUFFIXES, "focus/attention": (".py",)}.get(file, ())
        paths = sorted(p for p in (ROOT / file).rglob("*") if p.suffix in suffixes) or [ROOT / file]
        assert digits(paths) == now, f"{file}: has other digits than experiments/same.yaml lists"


def test_digits_that_look_like_a_number_are_texts(monkeypatch, tmp_path):
    path = tmp_path / "same.yaml"
    path.write_text("- files: {a.py: {now: 774039809492, as: 00e1}}\n")
    monkeypatch.setattr(imports, "SAME", path)
    imports.same.cache_clear()
    assert imports.same() == {("a.py", "774039809492"): "00e1"}
    imports.same.cache_clear()
