from __future__ import annotations

import json

import pytest
import torch

from experiments import settings, texts
from experiments.texts import Document, corpus
from experiments.texts.documents import WindowSequence, cut
from tests.experiments.texts.library import small


def books() -> list[Document]:
    """Tokens tell book and place: book 0 has 0.., book 1 has 1000.."""
    return [Document.of(f"book {b}", torch.arange(1000 * b, 1000 * b + 90 + 7 * b))
            for b in range(3)]  # fmt: skip


def starts(sequence: WindowSequence) -> list[int]:
    return [int(sequence[n]["input_ids"][0]) for n in range(len(sequence))]


def test_every_window_comes_once_before_any_comes_again():
    found = starts(WindowSequence(books(), 30, 18, seed=3))
    first, second = found[:9], found[9:]
    assert sorted(first) == sorted(second) == [0, 30, 60, 1000, 1030, 1060, 2000, 2030, 2060]
    assert first != second


def test_the_order_is_the_seeds_and_more_begin_alike():
    few = starts(WindowSequence(books(), 30, 5, seed=3))
    assert starts(WindowSequence(books(), 30, 12, seed=3))[:5] == few
    assert starts(WindowSequence(books(), 30, 5, seed=4)) != few
    assert len(WindowSequence(books(), 30, 0, seed=4)) == 0


def test_pieces_are_taken_evenly():
    found = [Document.of(title, torch.ones(length, dtype=torch.int64))
             for title, length in (("a", 19), ("b", 100), ("c", 35))]  # fmt: skip
    taken = cut(found, 60, 10, "letters")
    assert [(each.title, len(each.tokens)) for each in taken] == [("a", 10), ("b", 30), ("c", 20)]
    with pytest.raises(ValueError, match=r"^texts\.letters\.train_tokens: 200 asked .* have 140 "):
        cut(found, 200, 10, "letters")


def windows_of(chosen, context: int = 64, count: int = 40) -> WindowSequence:
    return texts.training_windows(chosen.cell("tiny"), chosen, context, count, seed=0)


def test_training_windows_are_of_the_training_side_alone(chosen, library):
    corpus.build("mine", chosen)
    whole = windows_of(chosen).windows_NT
    rows = [json.loads(line) for line in (corpus.ROOT / "mine" / "train.jsonl").open()]
    assert len(whole) == sum(len(row["text"]) // 64 for row in rows)
    found = texts.documents("mine", "train", "tiny-llama", chosen)
    wanted = [each.tokens[at : at + 64] for each in found
              for at in range(0, len(each.tokens) - 63, 64)]  # fmt: skip
    assert whole.equal(torch.stack(wanted))


def test_so_many_tokens_are_taken_as_asked_for(params, library):
    mine = {"source": "mine", "train_tokens": 1280, "piece": 128}
    chosen = settings.parse(small(params, mine=mine))
    corpus.build("mine", chosen)
    assert windows_of(chosen).windows_NT.numel() == 1280
    assert windows_of(chosen, context=100).windows_NT.shape[1] == 100


def test_documents_shorter_than_a_window_are_passed_over(chosen, library):
    corpus.build("mine", chosen)
    lengths = [len(each.tokens) for each in texts.documents("mine", "train", "tiny-llama", chosen)]
    assert len(windows_of(chosen, context=max(lengths)).windows_NT) == 1
    with pytest.raises(ValueError, match=r"^texts\.mine: no training document of 6 has a window"):
        windows_of(chosen, context=max(lengths) + 1)
