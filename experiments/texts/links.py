"""Distant words of a text that belong together, by rule: a name that comes again and two
expressions of time; and beside them any longer word that comes again, and any two longer words.

Nobody reads the text: a name is a capitalised word within a sentence that the text never has in
lower case, whoever it names; a surname that two people share counts as one.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import combinations
from typing import NamedTuple

import numpy as np
from transformers import PreTrainedTokenizerBase

WORD = re.compile(r"[A-Za-z]+(?:['\u2019-][A-Za-z]+)*|\d{4}")
WITHIN = re.compile(r"[a-z,;] $")  # what stands before a word that begins no sentence and no line
NAME = re.compile(r"[A-Z][a-z]+$")
YEAR = re.compile(r"1\d{3}$")
LONG = 6  # letters of a word that is likely to have a meaning of its own
_TITLES = (
    "Mr Mrs Miss Ms Dr Sir Madam Lord Lady King Queen Prince Princess Captain Colonel Major "
    "General Saint St God"
)
# Without may, march, second and spring, which are more often something else.
_TIMES = (
    "minute minutes hour hours day days night nights week weeks month months year years century "
    "centuries morning mornings noon afternoon evening evenings midnight sunrise sunset dawn dusk "
    "today to-day tomorrow to-morrow yesterday tonight to-night ago o'clock o\u2019clock monday "
    "tuesday wednesday thursday friday saturday sunday january february april june july august "
    "september october november december summer autumn winter"
)
TITLES, TIMES = frozenset(_TITLES.split()), frozenset(_TIMES.split())
KINDS = ("name", "time", "word")
# What makes a pair: words of which kind, and whether they are the same word.
LINKS = {"name": ("name", True), "time": ("time", False), "word": ("word", True),
         "words": ("word", False)}  # fmt: skip
MOST = 1000  # pairs of one link; of more, so many at random


class Found(NamedTuple):
    """A word, and the place of its last token, which alone has seen all of it."""

    word: str
    place: int


def found(tokenizer: PreTrainedTokenizerBase, ids: Sequence[int]) -> dict[str, list[Found]]:
    """The names, expressions of time and longer words of a text, in its order."""
    pieces = [tokenizer.decode([each]) for each in ids]
    text, ends = "".join(pieces), np.cumsum([len(each) for each in pieces])
    every = list(WORD.finditer(text))
    lower = {each.group() for each in every}
    kinds: dict[str, list[Found]] = {name: [] for name in KINDS}
    for each in every:
        before = text[max(0, each.start() - 2) : each.start()]
        if kind := kind_of(each.group(), before, lower):
            place = int(np.searchsorted(ends, each.end() - 1, side="right"))
            kinds[kind].append(Found(each.group().lower(), place))
    return kinds


def kind_of(word: str, before: str, every: set[str]) -> str | None:
    """What a word is; None: nothing that is looked for.

    Args:
        before: the two characters that stand before it; every: all words of the text.
    """
    if word.lower() in TIMES or YEAR.match(word):
        return "time"
    if NAME.match(word) and word not in TITLES and word.lower() not in every:
        return "name" if WITHIN.search(before) else None
    return "word" if word.islower() and len(word) >= LONG else None


def pairs(link: str, words: dict[str, list[Found]], least: int, seed: int = 0) -> np.ndarray:
    """Places (P, 2) of the later and the earlier of two, at least so many tokens apart."""
    kind, same = LINKS[link]
    made = [(later.place, earlier.place) for earlier, later in combinations(words[kind], 2)
            if later.place - earlier.place >= least
            and (later.word == earlier.word) == same]  # fmt: skip
    every = np.array(made, dtype=np.int64).reshape(-1, 2)
    if len(every) <= MOST:
        return every
    return every[np.sort(np.random.default_rng(seed).permutation(len(every))[:MOST])]


def moved(own: np.ndarray, tokens: int, draws: int, seed: int = 0) -> np.ndarray:
    """As many pairs anywhere in a text of so many tokens, at the same distances, for each draw."""
    apart = np.tile(own[:, 0] - own[:, 1], draws)
    earlier = np.random.default_rng(seed).integers(0, tokens - apart)
    return np.stack([earlier + apart, earlier], 1)
