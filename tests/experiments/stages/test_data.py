"""The data of an experiment: made once, made again where something it is made from has changed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from experiments import plans, settings, texts
from experiments.settings import Settings
from experiments.stages import data
from tests.experiments.texts.library import fill, small


@pytest.fixture
def chosen(tmp_path: Path, params: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> Settings:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FOCUS_DATA", str(tmp_path / "own"))
    fill(tmp_path / "own/books", range(12))
    fill(tmp_path / "own/letters", range(20, 32))
    return settings.parse(small(params, books={"source": "books"}, mail={"source": "letters"}))


def ready(part: str) -> Any:
    return json.loads(Path(f"data/ready/tiny/{part}.json").read_text())


@pytest.fixture
def half(tmp_path: Path, params: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> Settings:
    """What starts from a training that needs a GPU, where there is none; and no texts."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    values = small(params, mail={"source": "letters"})
    regime = {**values["experiments"]["tiny"]["regime"], "precision": "16-mixed"}
    values["experiments"]["tiny"]["regime"] = regime
    later = {**values["experiments"]["tiny"], "start": "tiny", "regime": None, "core": False}
    values["experiments"]["later"] = later
    return settings.parse(values)


@pytest.mark.parametrize("name", ["tiny", "later"])
def test_what_cannot_be_trained_here_is_refused_before_anything_is_fetched(
    half: Settings, name: str
) -> None:
    with pytest.raises(ValueError, match=r"^experiments\.tiny\.regime\.precision: 16-mixed needs"):
        data.prepare(name, half)
    assert not Path("data").exists()


def test_what_is_trained_elsewhere_is_read_here(
    half: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(data.trained, "is_trained", lambda *_: True)
    with pytest.raises(ValueError, match="letters"):  # which it comes to look for
        data.prepare("tiny", half)


def with_texts(chosen: Settings, name: str, **changes: Any) -> Settings:
    text = chosen.texts[name].model_copy(update=changes)
    return chosen.model_copy(update={"texts": {**chosen.texts, name: text}})


def test_training_and_readings_know_the_contents_that_they_see(chosen: Settings) -> None:
    data.prepare("tiny", chosen)
    sides = {side: texts.fingerprint("books", side) for side in texts.SIDES}
    assert ready("read")["texts"] == {"books": sides}
    assert ready("train")["texts"] == {
        "books": {side: sides[side] for side in ("train", "validation")}
    }
    assert ready("train")["sources"]["tiny-llama"]["name"] == "tiny-llama"


def test_texts_are_made_again_where_what_they_are_made_from_has_changed(
    chosen: Settings, capsys: pytest.CaptureFixture[str]
) -> None:
    def made(how: Settings) -> bool:
        data.prepare("tiny", how)
        return "data: books: making" in capsys.readouterr().out

    assert made(chosen)
    assert not made(chosen)
    assert not made(with_texts(chosen, "mail", min_characters=1))
    before = ready("train")
    assert made(with_texts(chosen, "books", test_every=3))
    assert ready("train") != before
    assert made(chosen)
    fill(Path("own/books"), range(12, 14))
    assert made(chosen)


def test_a_change_that_leaves_the_texts_as_they_are_leaves_the_fingerprints(
    chosen: Settings, capsys: pytest.CaptureFixture[str]
) -> None:
    data.prepare("tiny", chosen)
    before = ready("train"), ready("read")
    data.prepare("tiny", with_texts(chosen, "books", max_overlap=0.06))
    assert capsys.readouterr().out.count("making") == 2
    assert (ready("train"), ready("read")) == before


def test_what_is_damaged_is_made_again(
    chosen: Settings, capsys: pytest.CaptureFixture[str]
) -> None:
    data.prepare("tiny", chosen)
    before = ready("read")
    for name in ("made.json", "texts.json", "train.jsonl"):
        path = Path("data/texts/books") / name
        path.write_bytes(path.read_bytes()[:-30])
        capsys.readouterr()
        data.prepare("tiny", chosen)
        assert "data: books: making" in capsys.readouterr().out
        assert ready("read") == before


@pytest.mark.parametrize("name", sorted({*plans.MEASUREMENTS} - {*plans.WHOLE}))
def test_a_measurement_without_a_model_needs_nothing(
    chosen: Settings, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    data.prepare(name, chosen)
    assert capsys.readouterr().out == f"data: {name}: needs no model and no texts\n"
    assert not Path("data").exists()


def test_what_cannot_be_had_is_named(chosen: Settings) -> None:
    with pytest.raises(ValueError, match=r"^mine has no config.json; put the model's files into "):
        data.refuse_without_config("mine")
    with pytest.raises(ValueError, match="pg19"):
        data.prepare("tiny", with_texts(chosen, "books", source="pg19"))
