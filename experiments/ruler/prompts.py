"""Prompts of a given number of tokens."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from random import Random

from transformers import PreTrainedTokenizerBase


@dataclass(frozen=True)
class Draft:
    """A question before it is cut to a length.

    Attributes:
        opening: what the prompt begins with.
        filler: pieces of text, without end.
        needles: pieces that go between them, in this order.
        question: what the prompt ends with; the first answer follows it.
        answers: one after another, ``joint`` between them.
    """

    opening: str
    filler: Iterator[str]
    needles: list[str]
    question: str
    answers: list[str]
    joint: str = ","


@dataclass(frozen=True)
class Prompt:
    """Token ids.

    Attributes:
        ids: the prompt and its answers.
        answers: from and to of each answer in ``ids``; the joints between them are not scored.
        distance: tokens from the end of the first needle to the first answer.
    """

    ids: list[int]
    answers: list[tuple[int, int]]
    distance: int


def cut(draft: Draft, tokenizer: PreTrainedTokenizerBase, length: int, rng: Random) -> Prompt:
    """A draft with as much filler as ``length`` tokens hold, its answers among them.

    Raises:
        ValueError: it does not fit without any filler.
    """

    def encoded(text: str) -> list[int]:  # without the marks of a beginning
        return list(tokenizer(text, add_special_tokens=False, verbose=False).input_ids)

    opening, question = encoded(draft.opening + "\n"), encoded("\n" + draft.question)
    needles = [encoded(each + "\n") for each in draft.needles]
    answers = [encoded(" " + each) for each in draft.answers]
    joint = encoded(draft.joint)
    fixed = [opening, question, *needles, *answers, *[joint] * (len(answers) - 1)]
    room = length - sum(map(len, fixed))
    if room < 0:
        raise ValueError(f"length: a prompt takes {length - room} tokens without any filler, more "
                         f"than {length}; ask for a longer one")  # fmt: skip
    filler = filling(map(encoded, (f"{piece}\n" for piece in draft.filler)), room)
    body, end = spread(filler, needles, rng)
    ids = opening + body + question
    distance = len(ids) - len(opening) - end
    places = []
    for number, answer in enumerate(answers):
        ids = ids + (joint if number else [])
        places.append((len(ids), len(ids) + len(answer)))
        ids = ids + answer
    return Prompt(ids, places, distance)


def filling(pieces: Iterator[list[int]], room: int) -> list[list[int]]:
    """The first pieces, as many as there is room for."""
    found: list[list[int]] = []
    for ids in pieces:
        room -= len(ids)
        if room < 0:
            break
        found.append(ids)
    return found


def spread(filler: list[list[int]], needles: list[list[int]],
           rng: Random) -> tuple[list[int], int]:  # fmt: skip
    """Filler with the needles at places of chance between its pieces, in their order; and where
    the first needle ends."""
    places = sorted(rng.randint(0, len(filler)) for _ in needles)
    body: list[int] = []
    end, left = 0, list(zip(places, needles, strict=True))
    for number in range(len(filler) + 1):
        while left and left[0][0] == number:
            body += left.pop(0)[1]
            end = end or len(body)
        if number < len(filler):
            body += filler[number]
    return body, end
