"""Names, expressions of time and long words, by rule."""

from __future__ import annotations

import numpy as np
import pytest

from experiments.texts import links

TEXT = (
    "Often Harris walked, and Harris thought of Mr. Blake. The morning was bright.\n"
    "Bright was the year 1918, when Harris saw mountains and May, or mountains; often he may."
)


def test_words_are_told_by_rule() -> None:
    every = {"often", "may", "harris", "bright"}
    assert links.kind_of("Harris", "n ", {"Harris"}) == "name"
    assert links.kind_of("Harris", ". ", {"Harris"}) is None  # it may begin a sentence
    assert links.kind_of("Often", "d ", every) is None  # the text has it in lower case
    assert links.kind_of("Mr", "f ", set()) is None
    assert links.kind_of("Monday", ". ", set()) == links.kind_of("1918", "r ", set()) == "time"
    assert links.kind_of("mountains", "w ", every) == "word"
    assert links.kind_of("walk", "e ", every) is None


def test_a_word_is_where_its_last_token_is() -> None:
    ids = [ord(each) for each in TEXT]

    class Letters:
        def decode(self, own: list[int]) -> str:
            return "".join(map(chr, own))

    found = links.found(Letters(), ids)  # type: ignore[arg-type]
    assert [each.word for each in found["name"]] == ["harris", "harris", "harris"]
    assert {TEXT[each.place] for each in found["name"] if each.word == "harris"} == {"s"}
    assert [each.word for each in found["time"]] == ["morning", "year", "1918"]


def test_pairs_are_far_apart_and_no_repetition_where_they_are_of_time() -> None:
    own = [links.Found("a", 0), links.Found("b", 5), links.Found("a", 9)]
    words = {"name": own, "time": own, "word": own[:1]}
    assert links.pairs("name", words, 5).tolist() == [[9, 0]]
    assert links.pairs("time", words, 5).tolist() == [[5, 0]]
    assert links.pairs("words", words, 5).shape == (0, 2)


def test_of_many_pairs_some_are_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(links, "MOST", 3)
    words = {"word": [links.Found(str(n), n) for n in range(9)]}
    own = links.pairs("words", words, 2)
    assert len({tuple(each) for each in own.tolist()}) == 3
    assert (own == links.pairs("words", words, 2)).all()


def test_random_pairs_have_the_same_distances() -> None:
    own = np.array([[9, 0], [7, 5]])
    moved = links.moved(own, 10, 50)
    assert sorted(moved[:, 0] - moved[:, 1]) == [2] * 50 + [9] * 50
    assert moved.min() >= 0
    assert moved.max() < 10


def test_expressions_of_time_are_in_lower_case() -> None:
    assert {name.lower() for name in links.TIMES} == links.TIMES
