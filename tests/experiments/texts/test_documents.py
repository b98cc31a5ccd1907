from __future__ import annotations

import json
import subprocess
import sys

import pytest
import torch

from experiments import settings, texts
from experiments.settings import Perplexity
from experiments.sources.models import byte_tokenizer
from experiments.texts import corpus
from experiments.texts.documents import TOKENS
from tests.experiments.texts.library import small

MODEL = "tiny-llama"


@pytest.fixture
def built(chosen, library):
    corpus.build("mine", chosen)
    return chosen


def written(side: str) -> list[dict]:
    return [json.loads(line) for line in (corpus.ROOT / "mine" / f"{side}.jsonl").open()]


def test_documents_are_the_tokens_of_the_texts_in_their_order(built):
    found = texts.documents("mine", "train", MODEL, built)
    for document, row in zip(found, written("train"), strict=True):
        assert document.title == row["title"]
        assert document.tokens.dtype == torch.int64
        assert byte_tokenizer().decode(document.tokens) == row["text"]
    assert len({document.sha for document in found}) == len(found)
    assert all(len(document.sha) == 12 for document in found)


def test_tokens_are_kept_and_made_anew_for_another_text(built, library):
    first = texts.documents("mine", "train", MODEL, built)
    (kept,) = (TOKENS / MODEL / "mine").iterdir()
    before = kept.stat().st_mtime_ns
    again = texts.documents("mine", "train", MODEL, built)
    assert [document.sha for document in again] == [document.sha for document in first]
    assert kept.stat().st_mtime_ns == before
    path = corpus.ROOT / "mine" / "train.jsonl"
    path.write_text("".join(path.read_text().splitlines(keepends=True)[1:]))
    assert len(texts.documents("mine", "train", MODEL, built)) == len(first) - 1


def test_damaged_tokens_are_made_again(built):
    first = texts.documents("mine", "train", MODEL, built)
    (kept,) = (TOKENS / MODEL / "mine").iterdir()
    whole = kept.read_bytes()
    for damaged in (whole[: len(whole) // 2], b"", b"text"):
        kept.write_bytes(damaged)
        again = texts.documents("mine", "train", MODEL, built)
        assert [document.sha for document in again] == [document.sha for document in first]


def test_two_processes_may_write_the_same_tokens(built):
    code = (
        "import torch\nfrom experiments.texts.documents import _save, _load\n"
        "from pathlib import Path\npath = Path('tokens/x.npz')\n"
        "for n in range(40):\n    _save(path, ['a'], [[1] * 50000])\n"
        "    assert len(_load(path)[0].tokens) == 50000\n"
    )
    root = str(corpus.__file__).removesuffix("experiments/texts/corpus.py")
    runs = [
        subprocess.Popen([sys.executable, "-c", code], env={"PYTHONPATH": root}, text=True)
        for _ in range(2)
    ]
    assert [run.wait() for run in runs] == [0, 0]


def test_test_documents_open_for_a_final_reading_alone(built):
    search, final = built.readings["search"], built.readings["final"]
    for reading in (None, search):
        with pytest.raises(ValueError, match=r"opened by a final reading alone \(final: true\)"):
            texts.documents("mine", "test", MODEL, built, opened_by=reading)
    assert not TOKENS.exists()
    assert len(texts.documents("mine", "test", MODEL, built, opened_by=final)) == 4
    with pytest.raises(ValueError, match=r"side: test documents are opened by a final reading"):
        Perplexity(texts=("mine",), side="test")


def test_the_fingerprint_is_the_files_as_the_manifest_has_it(built):
    manifest = json.loads((corpus.ROOT / "mine" / "texts.json").read_text())
    for side, part in manifest["sides"].items():
        assert texts.fingerprint("mine", side) == part["sha256"]


def test_a_text_for_development_has_no_test_side(params, library):
    chosen = settings.parse(small(params, mine={"source": "mine", "development": True}))
    corpus.build("mine", chosen)
    with pytest.raises(ValueError, match=r"^texts\.mine: is for development"):
        texts.reading_windows(chosen.readings["final"], "mine", MODEL, chosen)


def test_a_missing_or_misspelt_side_is_named(chosen, place):
    with pytest.raises(ValueError, match=r"train\.jsonl is missing: run .*stages\.data` with"):
        texts.documents("mine", "train", MODEL, chosen)
    with pytest.raises(ValueError, match=r"^side: must be one of train, validation, test"):
        texts.documents("mine", "valid", MODEL, chosen)
    with pytest.raises(ValueError, match=r"^texts\.yours: no such text; there are mine"):
        texts.documents("yours", "train", MODEL, chosen)


def test_a_reading_takes_the_first_windows_of_the_first_documents(built):
    reading = built.readings["search"]
    found = texts.reading_windows(reading, "mine", MODEL, built)
    whole = texts.documents("mine", "validation", MODEL, built)
    assert len(found) == reading.documents == 2
    for (document, rows), wanted in zip(found, whole, strict=False):
        assert document.sha == wanted.sha
        assert rows.shape == (2, 64)
        assert rows.flatten().equal(wanted.tokens[:128])


def test_a_reading_passes_over_what_is_too_short_and_says_what_to_lower(built):
    lengths = [len(each.tokens) for each in texts.documents("mine", "train", MODEL, built)]
    context = sorted(lengths)[2] // 2 + 1  # three of six are too short for two windows
    reading = Perplexity(texts=("mine",), side="train", documents=3, windows=2, context=context)
    found = texts.reading_windows(reading, "mine", MODEL, built)
    assert [len(document.tokens) for document, _ in found] == [
        length for length in lengths if length >= 2 * context
    ]  # fmt: skip
    more = reading.model_copy(update={"documents": 4})
    with pytest.raises(ValueError, match=r"documents: 4 asked for, but train of texts\.mine has 3"):
        texts.reading_windows(more, "mine", MODEL, built)


def test_a_later_reading_opens_documents_that_an_earlier_one_left(built):
    first = Perplexity(texts=("mine",), side="train", documents=2, context=64)
    later = first.model_copy(update={"skip": 2, "documents": 3})
    earlier, own = (
        {document.sha for document, _ in texts.reading_windows(each, "mine", MODEL, built)}
        for each in (first, later)
    )
    assert (len(earlier), len(own)) == (2, 3)
    assert not earlier & own
    assert first.plain() == Perplexity(**first.plain()).plain()  # as results have it: without skip
    assert "skip" not in first.plain()
    assert later.plain()["skip"] == 2
    more = later.model_copy(update={"documents": 9})
    with pytest.raises(ValueError, match=r"^documents: 9 asked for after skip = 2, but train of"):
        texts.reading_windows(more, "mine", MODEL, built)


def test_a_side_that_a_source_has_not_is_named(built):
    (corpus.ROOT / "mine/validation.jsonl").write_text("")
    reading = Perplexity(texts=("mine",), documents=3)
    with pytest.raises(ValueError, match=r"^texts\.mine: its source has no validation documents"):
        texts.reading_windows(reading, "mine", MODEL, built)
