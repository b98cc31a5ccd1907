"""Reading and cleaning documents of a source, and telling which of them are the same book."""

from __future__ import annotations

import gzip
import hashlib
import html
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

SPLIT_FOLDERS = ("train", "validation", "test")
SHINGLE = 8  # words of a shingle: long enough that two books share hardly any by chance
_WORD = re.compile(r"[a-z0-9]+")
_START = re.compile(r"^\*{3} ?START OF (?:THE|THIS) PROJECT GUTENBERG.*$", re.M | re.I)
_SMALL_PRINT = re.compile(r"^\*END\*? ?THE SMALL PRINT.*$", re.M | re.I)
_END = re.compile(
    r"^(?:\*{3} ?END OF (?:THE|THIS) PROJECT GUTENBERG.*|End of (?:the )?Project Gutenberg.*)$",
    re.M | re.I,
)


@dataclass(frozen=True)
class Text:
    """A cleaned document; `split` is set where the source has splits of its own."""

    title: str
    file: str
    text: str
    split: str | None = None


def read(folder: Path, layout: str) -> list[Text]:
    """All documents of a fetched source, in a fixed order.

    Raises:
        ValueError: the folder is missing or holds no document.
    """
    if not folder.is_dir():
        raise ValueError(f"{folder} is missing: run `python -m experiments.stages.fetch` first")
    readers = {"texts": _texts, "wikitext": _wikitext, "enwik8": _enwik8}
    found = list(readers[layout](folder))
    if not found:
        raise ValueError(f"{folder}: holds no document (layout {layout})")
    return found


def _texts(folder: Path) -> Iterator[Text]:
    """A .txt file a document; top-level folders train, validation and test are splits."""
    for path in sorted(folder.rglob("*.txt")):
        name = path.relative_to(folder)
        split = name.parts[0] if len(name.parts) > 1 and name.parts[0] in SPLIT_FOLDERS else None
        text = clean(decode(path.read_bytes()))
        if text:
            yield Text(path.stem.removesuffix("_gut"), name.as_posix(), text, split)


_HEADING = re.compile(r"^ = ([^=].*[^=]|[^=]) = ?$", re.M)


def _wikitext(folder: Path) -> Iterator[Text]:
    """WikiText's articles; its splits keep their names but `valid`, which is validation."""
    for path in sorted(folder.glob("*.raw.gz")):
        name = path.name.split(".")[0]
        split = {"valid": "validation"}.get(name, name)
        whole = decode(gzip.decompress(path.read_bytes()))
        marks = list(_HEADING.finditer(whole))
        ends = [mark.start() for mark in marks[1:]] + [len(whole)]
        for mark, end in zip(marks, ends, strict=True):
            yield Text(mark[1].strip(), path.name, whole[mark.start() : end].strip(), split)


_PAGE = re.compile(r"<title>(.*?)</title>.*?<text[^>]*>(.*?)</text>", re.S)
_MARKUP = (
    (re.compile(r"<!--.*?-->", re.S), ""),
    (re.compile(r"<(ref|math|gallery|timeline)[^>/]*>.*?</\1>", re.S | re.I), ""),
    (re.compile(r"\{\|.*?\|\}", re.S), ""),
    (re.compile(r"\{\{[^{}]*\}\}"), ""),
    (re.compile(r"\{\{[^{}]*\}\}"), ""),  # templates in templates
    (
        re.compile(
            r"\[\[(?:image|file|category|[a-z-]{2,12}):[^\[\]]*(?:\[\[[^\]]*\]\][^\[\]]*)*\]\]",
            re.I,
        ),
        "",
    ),
    (re.compile(r"\[\[(?:[^\]|]*\|)?([^\]|]*)\]\]"), r"\1"),
    (re.compile(r"\[https?://\S+ ?([^\]]*)\]"), r"\1"),
    (re.compile(r"<[^>]+>"), ""),
    (re.compile(r"'{2,}"), ""),
    (re.compile(r"^=+ *(.*?) *=+$", re.M), r"\1"),
    (re.compile(r"\n{3,}"), "\n\n"),
)


def _enwik8(folder: Path) -> Iterator[Text]:
    """Wikipedia pages without their markup; redirects are left out."""
    whole = decode(gzip.decompress((folder / "enwik8.gz").read_bytes()))
    for match in _PAGE.finditer(whole):
        text = html.unescape(match[2])
        if text.lstrip().lower().startswith("#redirect"):
            continue
        for pattern, replacement in _MARKUP:
            text = pattern.sub(replacement, text)
        yield Text(html.unescape(match[1]), "enwik8.gz", text.strip())


def decode(raw: bytes) -> str:
    """UTF-8 text, or Latin-1 where it is not UTF-8, with plain line ends and no byte-order mark."""
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError:
        text = raw.decode("latin-1")
    return text.replace("\r\n", "\n").replace("\r", "\n")


def clean(text: str) -> str:
    """The book itself, without what Project Gutenberg puts before and after it."""
    for mark in (_START, _SMALL_PRINT):
        found = mark.search(text)
        if found:
            text = text[found.end() :]
    end = _END.search(text)
    if end:
        text = text[: end.start()]
    return re.sub(r"\n{4,}", "\n\n\n", text).strip()


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


_hashes: dict[str, int] = {}


def _word_hash(word: str) -> int:
    """A hash that is the same in every process (Python's own is not)."""
    if word not in _hashes:
        known = hashlib.blake2b(word.encode(), digest_size=8).digest()
        _hashes[word] = int.from_bytes(known, "little")
    return _hashes[word]


def shared(first: np.ndarray, second: np.ndarray) -> float:
    """Part of the smaller one's shingles that the larger one has too, 0..1."""
    common = len(np.intersect1d(first, second, assume_unique=True))
    return common / min(len(first), len(second))


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
    marks = [shingles(text.text) for text in texts]
    overlaps = dict(_overlaps(marks))
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


def without(found: list[Text], held_out: list[Text], max_overlap: float) -> list[Text]:
    """The documents of which none is the same book as a held-out one, as in :func:`distinct`."""
    marks = [shingles(text.text) for text in held_out]

    def strange(text: Text) -> bool:
        own = shingles(text.text)
        shared = (
            len(np.intersect1d(own, each)) / max(1, min(len(own), len(each))) for each in marks
        )
        return all(part <= max_overlap for part in shared)

    return [text for text in found if strange(text)]


def _overlaps(marks: list[np.ndarray]) -> Iterator[tuple[tuple[int, int], float]]:
    """Pairs of documents (first index lower) that share a shingle, with their overlap."""
    owners: dict[tuple[int, int], int] = {}
    flat = np.concatenate(marks)
    owner = np.repeat(np.arange(len(marks)), [len(mark) for mark in marks])
    order = np.argsort(flat, kind="stable")
    flat, owner = flat[order], owner[order]
    starts = np.flatnonzero(np.r_[True, flat[1:] != flat[:-1]])
    ends = np.r_[starts[1:], len(flat)]
    for start, end in zip(starts[ends - starts > 1], ends[ends - starts > 1], strict=True):
        group = owner[start:end]
        for place, first in enumerate(group):
            for second in group[place + 1 :]:
                pair = (int(first), int(second))
                owners[pair] = owners.get(pair, 0) + 1
    for pair, common in owners.items():
        yield pair, common / min(len(marks[pair[0]]), len(marks[pair[1]]))


def _collections(marks: list[np.ndarray], same: Iterable[tuple[int, int]]) -> set[int]:
    """Documents that hold at least two smaller ones which are different books."""
    holds: dict[int, list[int]] = {}
    pairs = set(same)
    for a, b in pairs:
        big, small = (a, b) if len(marks[a]) >= len(marks[b]) else (b, a)
        holds.setdefault(big, []).append(small)
    return {
        big
        for big, parts in holds.items()
        if any(
            (min(x, y), max(x, y)) not in pairs
            for place, x in enumerate(parts)
            for y in parts[place + 1 :]
        )
    }
