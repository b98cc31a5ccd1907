"""Telling which documents are the same book, by the 8-word sequences that they share."""

from __future__ import annotations

import hashlib
import itertools
import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from scipy import sparse

from experiments.texts.cleaning import Text

SHINGLE = 8  # words of a shingle: long enough that two books share hardly any by chance
_WORD = re.compile(r"[a-z0-9]+")


def shingles(text: str) -> np.ndarray:
    """Sorted distinct hashes (uint64) of all runs of 8 words; case and punctuation do not count."""
    words = _WORD.findall(text.lower())
    if len(words) < SHINGLE:
        words += [""] * (SHINGLE - len(words))
    ids = np.array([_word_hash(word) for word in words], dtype=np.uint64)
    mixed = np.zeros(len(ids) - SHINGLE + 1, dtype=np.uint64)
    with np.errstate(over="ignore"):
        for place in range(SHINGLE):
            part = ids[place : place + len(mixed)]
            mixed = (mixed ^ part) * np.uint64(0x9E3779B97F4A7C15) + np.uint64(place)
    return np.unique(mixed)


@lru_cache(maxsize=1_000_000)  # a large corpus has more distinct words than memory should hold
def _word_hash(word: str) -> int:
    """A hash that is the same in every process (Python's own is not)."""
    return int.from_bytes(hashlib.blake2b(word.encode(), digest_size=8).digest(), "little")


@dataclass(frozen=True)
class Dropped:
    """A document that was left out, and why."""

    title: str
    reason: str


def distinct(texts: list[Text], max_overlap: float) -> tuple[list[Text], list[Dropped], float]:
    """Documents of which no two are the same book, in the order given.

    A document that holds two or more others, which are not the same book themselves, is a
    collection and is left out; of two that are the same book, the shorter one is (of equal ones,
    the later).

    Returns:
        what stays, what is dropped with the reason, and the largest overlap between two that stay.
    """
    if not texts:
        return [], [], 0.0
    marks = [shingles(text.text) for text in texts]
    overlaps = _overlaps(marks)
    same = {pair for pair, part in overlaps.items() if part > max_overlap}
    collections = _collections(marks, same)
    dropped = dict.fromkeys(collections, "a collection of other documents")
    by_size = sorted(range(len(texts)), key=lambda index: (-len(marks[index]), index))
    kept: list[int] = []
    for index in by_size:
        if index in dropped:
            continue
        twin = next((k for k in kept if (min(k, index), max(k, index)) in same), None)
        if twin is None:
            kept.append(index)
        else:
            dropped[index] = f"the same book as {texts[twin].title}"
    stay = sorted(kept)
    rest = max((part for (a, b), part in overlaps.items() if {a, b} <= set(stay)), default=0.0)
    gone = [Dropped(texts[index].title, dropped[index]) for index in sorted(dropped)]
    return [texts[index] for index in stay], gone, rest


@dataclass(frozen=True)
class HeldOut:
    """What held-out documents are known by, without their texts: all their shingles, sorted
    (uint64), the number of the document that each is of (int64), and how many each has (int64)."""

    flat: np.ndarray
    owner: np.ndarray
    sizes: np.ndarray

    @classmethod
    def of(cls, texts: Iterable[Text]) -> HeldOut:
        """Of these documents."""
        marks = [shingles(text.text) for text in texts]
        sizes = np.array([len(mark) for mark in marks], dtype=np.int64)
        flat = np.concatenate([np.zeros(0, dtype=np.uint64), *marks])
        order = np.argsort(flat, kind="stable")
        return cls(flat[order], np.repeat(np.arange(len(marks)), sizes)[order], sizes)

    def has(self, text: str, max_overlap: float) -> bool:
        """Whether a text is the same book as one of them, as in :func:`distinct`."""
        own = shingles(text)
        first, last = (np.searchsorted(self.flat, own, side) for side in ("left", "right"))
        there = last > first
        if not there.any():
            return False
        places = zip(first[there], last[there], strict=True)
        owners = np.concatenate([self.owner[start:end] for start, end in places])
        common = np.bincount(owners, minlength=len(self.sizes))
        return bool(np.any(common / np.minimum(self.sizes, len(own)) > max_overlap))


def without(found: list[Text], held_out: list[Text], max_overlap: float) -> list[Text]:
    """The documents of which none is the same book as a held-out one, as in :func:`distinct`."""
    known = HeldOut.of(held_out)
    return [text for text in found if not known.has(text.text, max_overlap)]


def _overlaps(marks: list[np.ndarray]) -> dict[tuple[int, int], float]:
    """Pairs of documents (first index lower) that share a shingle, with their overlap: the part of
    the smaller one's shingles that the larger one has too."""
    sizes = np.array([len(mark) for mark in marks])
    known, places = np.unique(np.concatenate(marks), return_inverse=True)
    rows = (np.ones(len(places), dtype=np.int64), places, np.r_[0, np.cumsum(sizes)])
    has = sparse.csr_array(rows, shape=(len(marks), len(known)))
    common = sparse.triu(has @ has.T, k=1).tocoo()
    parts = common.data / np.minimum(sizes[common.row], sizes[common.col])
    pairs = zip(common.row.tolist(), common.col.tolist(), strict=True)
    return dict(zip(pairs, parts.tolist(), strict=True))


def _collections(marks: list[np.ndarray], same: set[tuple[int, int]]) -> set[int]:
    """Documents that hold at least two smaller ones which are different books."""
    holds: dict[int, list[int]] = {}
    for a, b in same:
        big, small = (a, b) if len(marks[a]) >= len(marks[b]) else (b, a)
        holds.setdefault(big, []).append(small)
    return {big for big, parts in holds.items()
            if not same.issuperset(itertools.combinations(sorted(parts), 2))}  # fmt: skip
