from __future__ import annotations

import gzip
import itertools
import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from huggingface_hub.utils import filter_repo_objects

from experiments import sources
from experiments.texts import shards
from tests.experiments.texts.library import jsonl, prose


def parquet(path: Path, texts: list[str]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    table = pa.table({"id": list(range(len(texts))), "text": texts})
    pq.write_table(table, path, row_group_size=4)
    return path


def test_every_format_gives_the_same_documents(tmp_path):
    texts = [prose(seed, 20) for seed in range(10)]
    lines = jsonl(tmp_path / "a.jsonl", texts).read_bytes()
    (tmp_path / "b.json.gz").write_bytes(gzip.compress(lines))
    parquet(tmp_path / "c.parquet", texts)
    for name in ("a.jsonl", "b.json.gz", "c.parquet"):
        assert list(shards.rows(tmp_path / name)) == list(enumerate(texts))
    (tmp_path / "d.txt").write_bytes(texts[0].encode() + b"\r\n")
    assert list(shards.rows(tmp_path / "d.txt")) == [(0, texts[0])]


@pytest.mark.parametrize("start", [0, 1, 4, 7, 10])
@pytest.mark.parametrize("name", ["a.jsonl", "a.parquet"])
def test_reading_goes_on_from_any_row_and_stripes_are_all_of_it(tmp_path, monkeypatch, name, start):
    monkeypatch.setattr(shards, "ROWS", 3)  # batches end within row groups
    texts = [f"text {n}" for n in range(10)]
    path = {".jsonl": jsonl, ".parquet": parquet}[Path(name).suffix](tmp_path / name, texts)
    whole = list(enumerate(texts))
    assert list(shards.rows(path, start)) == whole[start:]
    parts = [list(shards.rows(path, start, stripe, 3)) for stripe in range(3)]
    assert sorted(itertools.chain(*parts)) == whole[start:]
    assert all(number % 3 == stripe for stripe, part in enumerate(parts) for number, _ in part)


def test_documents_without_text_are_passed_over_or_refused(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text('{"text": "one"}\n\n{"text": " "}\n{"text": "half \\ud83d"}\n{"texts": "x"}\n')
    found = shards.rows(path)
    assert [next(found), next(found)] == [(0, "one"), (3, "half ?")]
    with pytest.raises(ValueError, match=r"a\.jsonl: row 4 has no field `text`"):
        next(found)
    pq.write_table(pa.table({"content": ["x"]}), tmp_path / "b.parquet")
    with pytest.raises(ValueError, match=r"b\.parquet: has no column `text`, but \['content'\]"):
        next(shards.rows(tmp_path / "b.parquet"))


def test_names_say_whose_a_shard_is(tmp_path):
    names = ["test/0.jsonl", "en/c4-train.00000-of-01024.json.gz", "en/c4-validation.00000.json.gz",
             "latest.parquet", "train/1.txt", "source.json", "train/readme.md"]  # fmt: skip
    for name in names:
        jsonl(tmp_path / name, ["x"])
    assert shards.by_side(tmp_path) == {
        "train": ["en/c4-train.00000-of-01024.json.gz", "latest.parquet", "train/1.txt"],
        "validation": ["en/c4-validation.00000.json.gz"],
        "test": ["test/0.jsonl"],
    }


def test_of_c4_there_are_forty_shards_to_train_on_and_one_held_out(tmp_path):
    source = sources.sources()["c4"]
    there = [f"{part}/c4-{side}.{number:05}-of-{count:05}.json.gz"
             for part in ("en", "other") for side, count in (("train", 1024), ("validation", 8))
             for number in range(count)]  # fmt: skip
    for name in filter_repo_objects(there, allow_patterns=list(source.files)):
        jsonl(tmp_path / name, ["x"])
    found = shards.by_side(tmp_path)
    assert {side: len(names) for side, names in found.items()} == {
        "train": 40, "validation": 1, "test": 0,
    }  # fmt: skip


def test_where_nothing_is_held_out_the_last_shard_is(tmp_path):
    for name in "abc":
        jsonl(tmp_path / f"{name}.jsonl", [f"{name}{n}" for n in range(4)])
    assert shards.by_side(tmp_path)["train"] == ["a.jsonl", "b.jsonl"]
    found = [(text.split, text.text, text.title) for text in shards.held_out(tmp_path)]
    assert found == [("validation", "c0", "c.jsonl:0"), ("validation", "c2", "c.jsonl:2"),
                     ("test", "c1", "c.jsonl:1"), ("test", "c3", "c.jsonl:3")]  # fmt: skip


@pytest.mark.parametrize("names", [[], ["a.jsonl"], ["test/a.jsonl"]])
def test_a_source_needs_shards_on_both_sides(tmp_path, names):
    for name in names:
        jsonl(tmp_path / name, ["x"])
    with pytest.raises(ValueError, match="has no shards to train on beside what is held out"):
        shards.by_side(tmp_path)


def test_lines_are_the_whole_of_a_document(tmp_path):
    path = jsonl(tmp_path / "a.jsonl", ["one\ntwo\u2028three"])
    assert len(path.read_bytes().splitlines()) == 1
    assert list(shards.rows(path)) == [(0, "one\ntwo\u2028three")]
    assert json.loads(path.read_text())["text"].count("\n") == 1
