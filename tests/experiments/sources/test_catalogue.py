from __future__ import annotations

from pathlib import Path

import pytest

from experiments import settings, sources
from experiments.sources import SourceError


@pytest.fixture(autouse=True)
def no_own_folder(monkeypatch):
    """The machine's own FOCUS_DATA has no say here."""
    monkeypatch.delenv("FOCUS_DATA", raising=False)


@pytest.fixture
def chosen(params):
    """One experiment of the core, and one beside it."""
    base = {"model": "tiny-llama", "method": {"name": "full"}, "texts": "plays"}
    params["texts"] = {
        "plays": {"source": "shakespeare"},
        "books": {"source": "pg19", "apart": ["unseen"]},
        "unseen": {"source": "gutenberg"},
        "letters": {"source": "sotu"},
    }
    reading = {"kind": "perplexity", "texts": ["plays"]}
    params["readings"] = {"short": reading, "wide": {**reading, "texts": ["letters", "unseen"]}}
    params["experiments"] = {
        "small": {**base, "readings": ["short"], "core": True},
        "large": {**base, "model": "gpt2", "texts": "books", "readings": ["wide"]},
    }
    params["prefill"]["texts"] = params["continuation"]["texts"] = "plays"
    return settings.parse(params)


def write_list(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


def test_the_list_of_the_repository_is_valid():
    listed = sources.sources()
    assert {"smollm2-135m-instruct", "shakespeare", "sotu", "wikitext-2", "benchmarks", "enwik8",
            "pg19", "gutenberg", "essays", "python-code", "truthfulqa", "gpt2"} <= set(listed)  # fmt: skip
    for source in listed.values():
        assert source.licence, source.name
        assert source.pinned or source.repo_type == "dataset", source.name


def test_every_text_of_params_has_a_source():
    listed = sources.sources()
    for name, text in settings.read_yaml(Path(__file__).parents[3] / "params.yaml")[
        "texts"
    ].items():
        assert listed[text["source"]].role == "corpus", name


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("kind: moon", r"^new\.kind: "),
        ("kind: package, package: p", r"^new\.version: is missing for a source of kind package"),
        ("kind: hub, repo: a/b", r"^new\.revision: is missing"),
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


def test_the_core_needs_its_own_model_and_texts_alone(chosen):
    assert sources.needed(chosen) == ["tiny-llama", "shakespeare"]


def test_what_is_asked_for_beside_is_needed_too(params, chosen):
    params["fetch"] = {"also": ["benchmarks", "shakespeare"], "allow_unpinned": False}
    assert sources.needed(settings.parse(params)) == ["tiny-llama", "shakespeare", "benchmarks"]


def test_an_experiment_needs_what_it_trains_on_is_kept_apart_from_and_is_read_with(chosen):
    assert sources.of_experiment(chosen.cell("large"), chosen) == [
        "gpt2", "pg19", "gutenberg", "sotu",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        ("enwik8", ["enwik8"]),
        ("letters", ["sotu"]),
        ("books", ["pg19", "gutenberg"]),
        ("large", ["gpt2", "pg19", "gutenberg", "sotu"]),
        ("bible", ["bible"]),  # find says that there is none
    ],
)
def test_a_name_is_a_sources_a_texts_or_an_experiments(chosen, name, wanted):
    assert sources.of_name(name, chosen, sources.sources()) == wanted


def test_an_unknown_name_is_refused_with_the_known_ones():
    with pytest.raises(SourceError, match=r"bible: no such source\. Known are smollm2"):
        sources.find("bible", sources.sources())


def test_focus_data_that_is_no_folder_is_an_error(monkeypatch):
    monkeypatch.setenv("FOCUS_DATA", "/nowhere/at/all")
    with pytest.raises(SourceError, match="FOCUS_DATA=/nowhere/at/all is not a folder"):
        sources.override("books")
