from __future__ import annotations

import pytest

from experiments.texts import overlap
from experiments.texts.cleaning import Text
from tests.experiments.texts.library import as_texts, prose


def titles(found: list[Text]) -> list[str]:
    return [text.title for text in found]


def test_different_books_stay_in_their_order():
    found = as_texts(a=prose(1), b=prose(2), c=prose(3))
    stay, dropped, largest = overlap.distinct(found, 0.05)
    assert titles(stay) == ["a", "b", "c"]
    assert dropped == []
    assert largest < 0.01


def test_the_same_book_twice_is_one_book_whatever_case_and_punctuation():
    shouted = prose(1).upper().replace(" ", ", ")
    stay, dropped, _ = overlap.distinct(as_texts(a=prose(1), b=prose(2), c=shouted), 0.05)
    assert titles(stay) == ["a", "b"]
    assert [(d.title, d.reason) for d in dropped] == [("c", "the same book as a")]


def test_an_excerpt_is_the_book_it_is_from():
    stay, dropped, _ = overlap.distinct(as_texts(short=prose(1)[:600], long=prose(1)), 0.05)
    assert titles(stay) == ["long"]
    assert dropped[0].reason == "the same book as long"


def test_complete_works_are_left_out_and_their_parts_stay():
    works = as_texts(works=f"{prose(1)} {prose(2)} {prose(3)}", a=prose(1), b=prose(2), c=prose(3))
    stay, dropped, largest = overlap.distinct(works, 0.05)
    assert titles(stay) == ["a", "b", "c"]
    assert [(d.title, d.reason) for d in dropped] == [("works", "a collection of other documents")]
    assert largest < 0.01


def test_two_editions_of_one_part_do_not_make_a_collection():
    found = as_texts(long=f"{prose(1)} {prose(2)}", a=prose(1), again=prose(1))
    stay, _, _ = overlap.distinct(found, 0.05)
    assert titles(stay) == ["long"]


def test_the_overlap_that_is_counted_is_the_true_one():
    found = as_texts(a=prose(1), b=f"{prose(1, 100)} {prose(2)}")
    ((pair, part),) = overlap._overlaps([overlap.shingles(text.text) for text in found]).items()
    assert pair == (0, 1)
    assert part == pytest.approx((100 - 7) / (400 - 7), abs=0.01)


def test_a_text_of_fewer_words_than_a_shingle_has_one():
    assert len(overlap.shingles("too short")) == 1


def test_no_documents_are_distinct():
    assert overlap.distinct([], 0.05) == ([], [], 0.0)


def test_what_another_holds_out_goes_in_whatever_edition():
    found = as_texts(a=prose(1), b=prose(2), c=f"{prose(3)} {prose(4)}", d=prose(5)[:600])
    held = as_texts(x=prose(2).upper(), y=prose(3), z=f"{prose(6)} {prose(5)}")
    assert titles(overlap.without(found, held, 0.05)) == ["a"]
    assert titles(overlap.without(found, [], 0.05)) == ["a", "b", "c", "d"]


def test_a_part_below_the_bound_is_no_edition():
    found = as_texts(a=f"{prose(1, 380)} {prose(2, 20)}")
    held = as_texts(b=prose(2))
    assert titles(overlap.without(found, held, 0.05)) == ["a"]
    assert titles(overlap.without(found, held, 0.02)) == []
