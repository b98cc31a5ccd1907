from __future__ import annotations

import hashlib
import json

import pytest

from experiments import settings
from experiments.texts import corpus
from tests.experiments.texts.library import fill, prose, small


def sides(name: str = "mine") -> dict[str, list[dict]]:
    return {
        side: [json.loads(line) for line in (corpus.ROOT / name / f"{side}.jsonl").open()]
        for side in corpus.SIDES
    }


def titles(name: str = "mine") -> dict[str, set[str]]:
    return {side: {row["title"] for row in rows} for side, rows in sides(name).items()}


def test_no_book_is_on_two_sides_and_the_manifest_tells_all(chosen, library):
    manifest = corpus.build("mine", chosen)
    assert manifest == json.loads((corpus.ROOT / "mine" / "texts.json").read_text())
    found = sides()
    assert {side: len(rows) for side, rows in found.items()} == {
        "train": 6, "validation": 2, "test": 4,
    }  # fmt: skip
    assert len(set.union(*titles().values())) == 12
    (twin,) = manifest["left_out"]
    assert twin["title"] in ("book03", "book03 again")
    assert manifest["too_short"] == 1
    for side, rows in found.items():
        part, raw = manifest["sides"][side], (corpus.ROOT / "mine" / f"{side}.jsonl").read_bytes()
        assert part["sha256"] == hashlib.sha256(raw).hexdigest()
        assert part["characters"] == sum(len(row["text"]) for row in rows)
        assert [row["title"] for row in part["list"]] == [row["title"] for row in rows]
        order = [hashlib.sha256(row["text"].encode()).hexdigest() for row in rows]
        assert order == sorted(order) == [row["sha256"] for row in part["list"]]


def test_the_text_is_the_books_and_the_same_every_time(chosen, library, place):
    corpus.build("mine", chosen)
    row = sides()["test"][0]
    assert row["text"] == (library / row["file"]).read_text()
    corpus.build("mine", chosen, folder=place / "again")
    for path in (corpus.ROOT / "mine").iterdir():
        assert path.read_bytes() == (place / "again" / path.name).read_bytes()


def split_by_hand(library) -> None:
    for path in library.glob("*.txt"):
        path.unlink()
    for seed, split in enumerate(["test", "train", "test", "validation", "train"]):
        (library / split).mkdir(exist_ok=True)
        (library / split / f"{seed}.txt").write_text(prose(seed))


def test_a_sources_own_sides_are_kept(chosen, library):
    split_by_hand(library)
    corpus.build("mine", chosen)
    assert titles() == {"test": {"0", "2"}, "train": {"1", "4"}, "validation": {"3"}}


def test_what_was_looked_at_is_validation(params, library):
    split_by_hand(library)
    chosen = settings.parse(small(params, mine={"source": "mine", "development": True}))
    corpus.build("mine", chosen)
    assert titles() == {"test": set(), "train": {"1", "4"}, "validation": {"0", "2", "3"}}


def test_a_training_book_that_another_text_holds_out_is_left_out(params, library, place):
    other = fill(place / "data/sources/other/test", range(20, 23)).parent
    (other / "test" / "edition.txt").write_text(prose(5).upper())
    (other / "train").mkdir()
    (other / "train" / "shared.txt").write_text(prose(6))  # on nobody's held-out side
    fill(place / "own/other", range(1))
    mine = {"source": "mine", "test_every": 100, "validation_every": 100, "apart": ["other"]}
    chosen = settings.parse(small(params, mine=mine, other={"source": "other"}))
    manifest = corpus.build("mine", chosen)
    assert "book05" not in titles()["train"]
    assert {"book06", "book07"} <= titles()["train"]
    assert {"title": "book05", "reason": "held out by other"} in manifest["left_out"]


def test_apart_from_a_text_that_there_is_not_is_refused(params):
    with pytest.raises(ValueError, match=r"^texts\.mine\.apart: 'other' is unknown"):
        settings.parse(small(params, mine={"source": "mine", "apart": ["other"]}))


def test_a_text_that_cannot_be_had_is_named(chosen, params, place):
    with pytest.raises(ValueError, match=r"texts\.poems: no such text; there are mine"):
        corpus.build("poems", chosen)
    fill(place / "own/mine", range(1))
    with pytest.raises(ValueError, match=r"mine is not there: run .*stages\.fetch mine` first"):
        corpus.build("mine", chosen)
    fill(place / "data/sources/mine", range(2), words=10)
    with pytest.raises(ValueError, match=r"^texts\.mine\.min_characters: no document of mine"):
        corpus.build("mine", chosen)
    assert not corpus.ROOT.exists()
