"""Training texts of several kinds: as much of each, from the training side alone."""

import dataclasses
import json

import numpy as np
import pytest

from experiments import data, settings, sources
from experiments.schema import read_yaml
from experiments.stages import mixture, transfer
from tests.experiments.test_corpus import prose
from tests.experiments.test_retrofit import ROOT, workspace

LETTERS = {f"letter {n}": prose(n, 300) for n in range(8)}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A workspace with a corpus of random tokens and two folders of the user's own texts."""
    params = read_yaml(ROOT / "params.yaml")
    params["corpus"]["source"] = "books"
    params["mixture"] = {"sources": ["books", "letters", "notes"], "tokens": 512, "piece": 128}
    place = workspace(tmp_path / "work", params)
    for title, text in LETTERS.items():
        path = place / "texts" / "letters" / f"{title}.txt"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    for side in ("train", "test"):
        path = place / "texts" / "notes" / side / "note.txt"
        path.parent.mkdir(parents=True)
        path.write_text(prose(100 + len(side), 300))
    monkeypatch.chdir(place)
    monkeypatch.setenv("FOCUS_DATA", str(place / "texts"))
    return place


def test_every_source_gives_as_much(folder):
    found = mixture.build(settings.load())
    assert found["tokens"] == {"books": 512, "letters": 512, "notes": 512}
    documents = data.load_split("train", data.MIXTURE)
    assert all(len(document.tokens) % 128 == 0 for document in documents)
    kinds = [document.title.split(":")[0] for document in documents]
    assert kinds.count("books") == 4  # 400 tokens each: one piece of each book
    assert kinds.count("letters") >= 4
    assert kinds.count("notes") == 1  # its test side is never trained on
    assert data.manifest(data.MIXTURE) == found
    again = mixture.build(settings.load())
    assert again == found


def test_the_corpus_gives_its_training_side(folder):
    mixture.build(settings.load())
    train = np.concatenate([each.tokens.numpy() for each in data.load_split("train")])
    taken = [each for each in data.load_split("train", data.MIXTURE) if "books" in each.title]
    for each in taken:
        first = each.tokens.numpy()
        assert any(np.array_equal(train[i : i + 128], first) for i in range(0, len(train), 400))


def test_a_source_without_sides_keeps_some_documents_out(folder):
    chosen = settings.load()
    tokenizer = mixture.models.load_tokenizer("tiny-llama")
    source = sources.find("letters", sources.sources())
    sources.fetch(source)
    every = dataclasses.replace(chosen.mixture, tokens=128 * 100)
    wide = dataclasses.replace(chosen, mixture=every)
    taken = mixture.training_side(source, wide, tokenizer, mixture.held_out(chosen))
    assert len(taken) == len(LETTERS) - len(LETTERS) // chosen.corpus.test_every
    assert {title for title, _ in taken} < set(LETTERS)


def test_nothing_that_the_corpus_holds_out_comes_in_by_another_source(folder):
    """An edition of a test book among the letters."""
    chosen = settings.load()
    books = folder / "texts" / "books"
    books.mkdir()
    (books / "held.txt").write_text(LETTERS["letter 3"].upper())
    sources.fetch(sources.find("books", sources.sources()))
    manifest = {"splits": {"validation": {"list": []}, "test": {"list": [{"file": "held.txt"}]}}}
    (folder / "data/corpus/corpus.json").write_text(json.dumps(manifest))
    source = sources.find("letters", sources.sources())
    sources.fetch(source)
    every = dataclasses.replace(chosen.mixture, tokens=128 * 100)
    tokenizer = mixture.models.load_tokenizer("tiny-llama")
    wide = dataclasses.replace(chosen, mixture=every)
    taken = mixture.training_side(source, wide, tokenizer, mixture.held_out(chosen))
    assert "letter 3" not in {title for title, _ in taken}
    assert len(taken) >= 5


def test_too_little_text_is_refused_by_name(folder):
    documents = [("a", [1] * 300), ("b", [2] * 100)]
    how = settings.load().mixture
    with pytest.raises(ValueError, match=r"^mixture.tokens: 512 asked for, letters has 256"):
        mixture.cut(documents, how, "letters")


def test_pieces_are_taken_evenly():
    how = settings.MixtureSettings(("letters",), tokens=60, piece=10)
    cut = mixture.cut([("a", [1] * 19), ("b", [2] * 100), ("c", [3] * 35)], how, "letters")
    assert [(title, len(tokens)) for title, tokens in cut] == [("a", 10), ("b", 30), ("c", 20)]


def test_what_was_trained_on_is_no_transfer(folder):
    chosen = settings.load()
    with pytest.raises(ValueError, match=r"^letters: is among mixture.sources"):
        transfer.refuse_training_texts("letters", chosen, "mixture", [False, False])
    transfer.refuse_training_texts("notes", chosen, "mixture", [True, True])  # has a test side
    transfer.refuse_training_texts("letters", chosen, "corpus", [False, False])
    with pytest.raises(ValueError, match=r"^books: is what the routers were trained on"):
        transfer.refuse_training_texts("books", chosen, "corpus", [False, False])
