"""The tasks, by name: each drafts a question from a source of chance and a length in tokens, to
which a prompt is then cut."""

from __future__ import annotations

import string
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import cycle, islice, pairwise
from random import Random

from transformers import PreTrainedTokenizerBase

from experiments.ruler import material
from experiments.ruler.material import Asked

HIDE = "Some facts about secret numbers stand between the sentences of this text. Remember them."
PASSAGES = "Answer the question at the end from these passages."


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


def prompt(task: str, number: int, length: int, tokenizer: PreTrainedTokenizerBase) -> Prompt:
    """Question ``number`` of a task, at most ``length`` tokens with its answers: the same in every
    run.

    Raises:
        ValueError: no such task, or the length holds no such question.
    """
    if task not in TASKS:
        raise ValueError(f"tasks: {task!r} is unknown; there are {', '.join(TASKS)}")
    rng = Random(f"{task}.{length}.{number}")
    return cut(TASKS[task](rng, length), tokenizer, length, rng)


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


def numbers(rng: Random, length: int, keys: int, values: int, asked: int) -> Draft:
    """Numbers are hidden under so many words, so many a word; those of the first words are asked
    for."""
    words = rng.sample(material.words(), keys)
    hidden = [(word, str(rng.randint(1000000, 9999999))) for word in words for _ in range(values)]
    wanted = [(word, value) for word, value in hidden if word in words[:asked]]
    needles = [f"The secret number of {word} is {value}." for word, value in hidden]
    if asked == 1:  # the first needle is one that is asked for
        needles = needles[:values] + rng.sample(needles[values:], len(needles) - values)
        order = list(range(len(needles)))
    else:
        order = rng.sample(range(len(needles)), len(needles))
    named = ", ".join(dict.fromkeys(word for word, _ in wanted))
    several = len(wanted) > 1
    question = (f"Which secret numbers does the text give of {named}? In the order of the question "
                f"and of the text, the secret numbers of {named} are" if several else
                f"Which secret number does the text give of {named}? The secret number of {named} "
                "is")  # fmt: skip
    return Draft(HIDE, _sentences(rng), [needles[place] for place in order], question,
                 [value for _, value in wanted])  # fmt: skip


def tracking(rng: Random, length: int) -> Draft:
    """A value goes from one variable to the next, four times; which variables have it?"""
    names = ["".join(rng.choices(string.ascii_uppercase, k=5)) for _ in range(5)]
    value = str(rng.randint(10000, 99999))
    needles = [f"VAR {names[0]} = {value}"]
    needles += [f"VAR {new} = VAR {old}" for old, new in pairwise(names)]
    question = (f"Which variables hold the value {value}? In the order of the text, the variables "
                f"that hold {value} are")  # fmt: skip
    return Draft("Follow the variables that stand between the sentences of this text.",
                 _sentences(rng), needles, question, names)  # fmt: skip


def common(rng: Random, length: int) -> Draft:
    """Three words of a list come thirty times in 4,096 tokens, the others at most twice."""
    words = rng.sample(material.words(), 1500)
    asked, others = sorted(words[:3]), words[3:]
    needles = rng.sample(asked * _times(30, length), 3 * _times(30, length))
    return Draft(
        "This is a list of words. Some of them come often.",
        cycle(others),
        needles,
        "Which three words come most often? In alphabetical order they are",
        asked,
    )


def frequent(rng: Random, length: int) -> Draft:
    """Three made-up words come 60, 40 and 25 times in 4,096 tokens, the others once."""
    made = iter(lambda: "".join(rng.choices(string.ascii_lowercase, k=5)), "")
    asked = list(islice(made, 3))
    often = [word for word, times in zip(asked, (60, 40, 25), strict=True)
             for _ in range(_times(times, length))]  # fmt: skip
    return Draft(
        "This is a list of coded words. Some of them come often.",
        made,
        rng.sample(often, len(often)),
        "Which three coded words come most often? The most frequent one first, they are",
        asked,
    )


def answered(rng: Random, length: int, questions: Callable[[], Sequence[Asked]]) -> Draft:
    """A question over some of many paragraphs."""
    known = questions()
    longest = 2 * length  # characters of what it is answered from: half of a prompt, about
    order = rng.sample(known, len(known))
    fits = (each for each in order if sum(map(len, each.paragraphs)) <= longest)
    asked = next(fits, None)
    if asked is None:
        raise ValueError(f"length: {length} tokens hold no question; ask for longer prompts")
    seen = set(asked.paragraphs)

    def others() -> Iterator[str]:
        for paragraph in (each for other in order for each in other.paragraphs):
            if paragraph not in seen and len(paragraph) < longest:
                seen.add(paragraph)
                yield paragraph

    needles = rng.sample(asked.paragraphs, len(asked.paragraphs))
    return Draft(PASSAGES, others(), needles, f"Question: {asked.question}\nAnswer:",
                 [asked.answer])  # fmt: skip


def _sentences(rng: Random) -> Iterator[str]:
    found = material.sentences()
    start = rng.randrange(len(found))
    return islice(cycle(found), start, None)


def _times(at_4096: int, length: int) -> int:
    return max(1, at_4096 * length // 4096)


TASKS: dict[str, Callable[[Random, int], Draft]] = {
    "single": partial(numbers, keys=1, values=1, asked=1),
    "multikey": partial(numbers, keys=4, values=1, asked=1),
    "multivalue": partial(numbers, keys=1, values=4, asked=1),
    "multiquery": partial(numbers, keys=4, values=1, asked=4),
    "tracking": tracking, "common": common, "frequent": frequent,
    "squad": partial(answered, questions=material.squad),
    "hotpotqa": partial(answered, questions=material.hotpotqa),
}  # fmt: skip
