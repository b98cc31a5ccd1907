from __future__ import annotations

from pathlib import Path

import pytest

from experiments import settings, sources
from experiments.sources import SourceError


def write_list(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


def test_the_list_of_the_repository_is_valid():
    listed = sources.sources()
    known = "smollm2-135m-instruct shakespeare sotu wikitext-2 benchmarks pg19 gutenberg"
    assert {*known.split(), "essays", "python-code", "truthfulqa", "gpt2"} <= set(listed)
    for source in listed.values():
        assert source.licence, source.name


def test_every_text_of_params_has_a_source():
    listed = sources.sources()
    texts = settings.read_yaml(Path(__file__).parents[3] / "params.yaml")["texts"]
    for name, text in texts.items():
        assert listed[text["source"]].role == "corpus", name


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("kind: moon", r"^new\.kind: "),
        ("kind: package, package: p", r"^new\.version: is missing for a source of kind package"),
        ("kind: hub, repo: a/b", r"^new\.revision: is missing"),
        ("kind: hub, repo: a/b, files: [x], revision: main", r"^new\.revision: .*got 'main'"),
        ("kind: folder, size: 3", r"^new\.size: unknown field"),
        ("kind: package, package: p, version: '1', file: p.whl, members: [a], sha256: abc",
         r"^new\.sha256: "),
        ("kind: package, package: p, version: '1', file: ../p.whl, members: [a], sha256: "
         + "a" * 64, r"^new\.file: must be a plain file name"),
    ],
)  # fmt: skip
def test_a_bad_row_is_named(tmp_path, row, message):
    path = write_list(tmp_path / "s.yaml", f"new: {{role: corpus, what: x, licence: y, {row}}}")
    with pytest.raises(ValueError, match=message):
        sources.sources(path)


def test_a_row_that_is_no_mapping_is_named(tmp_path):
    with pytest.raises(ValueError, match=r"^new: must be a mapping"):
        sources.sources(write_list(tmp_path / "s.yaml", "new: 3"))


def test_an_unknown_name_is_refused_with_the_known_ones():
    with pytest.raises(SourceError, match=r"bible: no such source\. Known are smollm2"):
        sources.find("bible", sources.sources())


def test_focus_data_that_is_no_folder_is_an_error(monkeypatch):
    monkeypatch.setenv("FOCUS_DATA", "/nowhere/at/all")
    with pytest.raises(SourceError, match="FOCUS_DATA=/nowhere/at/all is not a folder"):
        sources.override("books")
