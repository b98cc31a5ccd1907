from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from experiments import settings
from experiments.stages import fetch
from tests.experiments.sources.archive_makers import below
from tests.experiments.texts.library import fill, small
from tests.timed import untrained


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
    params["bases"] = {}
    params["experiments"] = {
        "small": {**base, "readings": ["short"], "core": True},
        "large": {**base, "model": "gpt2", "texts": "books", "readings": ["wide"]},
    }
    return settings.parse({**params, **untrained(params, texts="plays")})


def test_the_core_needs_its_own_model_and_texts_alone(chosen):
    assert fetch.needed(chosen) == ["tiny-llama", "shakespeare"]


def test_what_is_asked_for_beside_is_needed_too(chosen):
    beside = chosen.fetch.model_copy(update={"also": ("benchmarks", "shakespeare")})
    more = chosen.model_copy(update={"fetch": beside})
    assert fetch.needed(more) == ["tiny-llama", "shakespeare", "benchmarks"]


def test_an_experiment_needs_what_it_trains_on_is_kept_apart_from_and_is_read_with(chosen):
    assert fetch.of_experiment("large", chosen) == [
        "gpt2", "gutenberg", "pg19", "sotu",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        ("benchmarks", ["benchmarks"]),
        ("letters", ["sotu"]),
        ("books", ["gutenberg", "pg19"]),
        ("large", ["gpt2", "gutenberg", "pg19", "sotu"]),
        ("bible", ["bible"]),  # find says that there is none
    ],
)
def test_a_name_is_a_sources_a_texts_or_an_experiments(chosen, name, wanted):
    assert fetch.meant(name, chosen) == wanted


def test_the_stage_fetches_what_the_core_needs_and_fails_with_the_cure(
    tmp_path, monkeypatch, capsys, params
):
    (tmp_path / "scales").mkdir()
    fill(tmp_path / "own/mine", range(1))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FOCUS_DATA", str(tmp_path / "own"))
    texts = small(params, mine={"source": "mine"}, beyond={"source": "gutenberg"})
    Path("params.yaml").write_text(yaml.safe_dump(texts))
    assert fetch.main([]) == 0
    wanted = [
        "sources/mine/book00.txt", "sources/mine/source.json", "sources/tiny-llama/source.json",
    ]  # fmt: skip
    assert below(tmp_path / "data") == wanted
    assert fetch.main(["--list"]) == 0
    assert "openwebtext (not pinned)" in capsys.readouterr().out
    assert fetch.main(["bible"]) == 1
    assert "fetch: bible: no such source" in capsys.readouterr().err
    assert fetch.main(["beyond"]) == 1
    assert "the folder gutenberg/ of the folder that FOCUS_DATA" in capsys.readouterr().err
    assert below(tmp_path / "data") == wanted
