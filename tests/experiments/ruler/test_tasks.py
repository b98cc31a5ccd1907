"""Prompts of the long-context tasks: what they ask can be answered from them, and they fit."""

from __future__ import annotations

import re
from pathlib import Path
from random import Random

import pytest

from experiments.ruler.tasks import TASKS, Prompt, prompt, spread
from experiments.sources import catalogue
from experiments.sources.models import byte_tokenizer

LENGTH = 3000


@pytest.fixture(autouse=True)
def sources(material_of_letters: None) -> None:
    """All tests here draw from the small set."""


def told(found: Prompt) -> tuple[str, list[str]]:
    tokenizer = byte_tokenizer()
    answers = [tokenizer.decode(found.ids[start:end]).strip() for start, end in found.answers]
    return tokenizer.decode(found.ids[: found.answers[0][0]]), answers


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("number", range(3))
def test_a_prompt_fits_and_is_the_same_again(task: str, number: int) -> None:
    found = prompt(task, number, LENGTH, byte_tokenizer())
    assert LENGTH * 0.5 < len(found.ids) <= LENGTH or task in ("squad", "hotpotqa")
    assert len(found.ids) <= LENGTH
    assert found == prompt(task, number, LENGTH, byte_tokenizer())
    assert found.ids != prompt(task, number + 1, LENGTH, byte_tokenizer()).ids
    assert 0 < found.distance < len(found.ids)


@pytest.mark.parametrize(("task", "answers"), [("single", 1), ("multikey", 1), ("multivalue", 4),
                                               ("multiquery", 4)])  # fmt: skip
def test_hidden_numbers_are_in_the_text_under_the_words_asked_for(task: str, answers: int) -> None:
    text, values = told(prompt(task, 0, LENGTH, byte_tokenizer()))
    hidden = re.findall(r"The secret number of (\w+) is (\d{7})\.", text)
    named = re.findall(r"give of (.*?)\?", text)[0].split(", ")
    assert len(values) == answers
    assert [value for name in named for word, value in hidden if word == name] == values
    assert len(hidden) == (1 if task == "single" else 4)


def test_a_value_is_followed_through_its_variables() -> None:
    text, names = told(prompt("tracking", 0, LENGTH, byte_tokenizer()))
    value = re.findall(r"hold the value (\d{5})", text)[0]
    lines = dict(re.findall(r"VAR (\w+) = (?:VAR )?(\w+)", text))
    assert list(lines) == names
    for name in names:
        while name in lines:
            name = lines[name]
        assert name == value


@pytest.mark.parametrize("task", ["common", "frequent"])
def test_the_words_asked_for_come_most_often(task: str) -> None:
    text, words = told(prompt(task, 0, LENGTH, byte_tokenizer()))
    listed = text.split("\n")[1:]
    counts = sorted(((listed.count(word), word) for word in set(listed) if word), reverse=True)
    assert {word for _, word in counts[:3]} == set(words)
    if task == "frequent":
        assert [word for _, word in counts[:3]] == words


@pytest.mark.parametrize("task", ["squad", "hotpotqa"])
def test_questions_come_with_the_paragraphs_that_answer_them(task: str) -> None:
    text, (answer,) = told(prompt(task, 1, LENGTH, byte_tokenizer()))
    assert answer in text.split("Question:")[0]
    assert answer not in ("yes", "")


def test_needles_keep_their_order() -> None:
    body, end = spread([[0]] * 5, [[1], [2], [3]], Random(1))
    assert [each for each in body if each] == [1, 2, 3]
    assert body[end - 1] == 1


@pytest.mark.parametrize(("task", "length", "word"), [("none", 512, "unknown"),
                                                      ("multivalue", 150, "longer")])  # fmt: skip
def test_refusals(task: str, length: int, word: str) -> None:
    with pytest.raises(ValueError, match=word):
        prompt(task, 0, length, byte_tokenizer())


def test_missing_data_is_told_how_to_fetch(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(catalogue, "ROOT", tmp_path / "nothing")
    with pytest.raises(ValueError, match="fetch ruler"):
        prompt("squad", 0, 512, byte_tokenizer())
