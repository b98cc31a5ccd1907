"""Reading and cleaning the documents of a fetched source."""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

SPLIT_FOLDERS = ("train", "validation", "test")
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
    found = list(READERS[layout](folder))
    if not found:
        raise ValueError(f"{folder}: holds no document (layout {layout})")
    return found


def _texts(folder: Path) -> Iterator[Text]:
    """A .txt file a document; top-level folders train, validation and test are sides.

    Where a manifest.json lists `id` and `title`, a file <id>.txt has that title.
    """
    manifest = folder / "manifest.json"
    listed = json.loads(manifest.read_text(encoding="utf-8")) if manifest.is_file() else []
    titles = {str(row["id"]): str(row["title"]) for row in listed}
    for path in sorted(folder.rglob("*.txt")):
        name = path.relative_to(folder)
        split = name.parts[0] if len(name.parts) > 1 and name.parts[0] in SPLIT_FOLDERS else None
        text = clean(decode(path.read_bytes()))
        if text:
            title = titles.get(path.stem, path.stem.removesuffix("_gut"))
            yield Text(title, name.as_posix(), text, split)


_HEADING = re.compile(r"^ = ([^=].*[^=]|[^=]) = ?$", re.M)


def _wikitext(folder: Path) -> Iterator[Text]:
    """WikiText's articles; its splits keep their names but `valid`, which is validation."""
    for file, whole in _wikitext_files(folder):
        name = re.split(r"[.-]", file)[0]
        split = {"valid": "validation"}.get(name, name)
        marks = list(_HEADING.finditer(whole))
        ends = [mark.start() for mark in marks[1:]] + [len(whole)]
        for mark, end in zip(marks, ends, strict=True):
            yield Text(mark[1].strip(), file, whole[mark.start() : end].strip(), split)


def _wikitext_files(folder: Path) -> Iterator[tuple[str, str]]:
    """Names and texts: one .raw.gz a split, or shards of it, <split>-*.parquet, with a line a row,
    which are one text, since they cut articles; it goes by the first shard's name."""
    for path in sorted(folder.glob("*.raw.gz")):
        yield path.name, decode(gzip.decompress(path.read_bytes()))
    for _, shards in groupby(sorted(folder.rglob("*-*.parquet")), lambda p: p.name.split("-")[0]):
        import pyarrow.parquet as pq  # for such shards alone

        paths = list(shards)
        lines = [line.rstrip("\n") for path in paths
                 for line in pq.read_table(path, columns=["text"])["text"].to_pylist()]  # fmt: skip
        yield paths[0].name, "\n".join(lines)


_DATED = re.compile(r"(?:^|(?<=\.))([A-Z][a-z]+ (?:19|20)\d\d(?:,[^\n]*?)?) {2}\n {2}\n", re.M)
_ESSAY_MARKUP = (
    (re.compile(r"\\([().\-])"), r"\1"),
    (re.compile(r"\[([^\[\]]*)\]\((?:[^()\s]|\s(?=\S))*\)"), r"\1"),
    (re.compile(r"\*\*"), ""),
    (re.compile(r"(?<!\w)_([^_]+?) ?_(?!\w)"), r"\1"),
    (re.compile(r"[ \t]+$", re.M), ""),
    (re.compile(r"\n{3,}"), "\n\n"),
)


def _essays(folder: Path) -> Iterator[Text]:
    """Essays of RULER's one long text; each begins with a line of month and year alone.

    The 48 essays of the text's first part have no such lines, and their paragraphs have run into
    one another ("mistakes.If you had"): they are left out.
    """
    path = folder / "PaulGrahamEssays.json"
    whole = json.loads(path.read_text(encoding="utf-8"))["text"]
    # Dashes and quotes of Windows' code page, which were taken for Latin-1.
    whole = re.sub(r"[\x80-\x9f]", _from_windows, whole)
    marks = list(_DATED.finditer(whole))
    ends = [mark.start() for mark in marks[1:]] + [len(whole)]
    for number, (mark, end) in enumerate(zip(marks, ends, strict=True)):
        text = whole[mark.end() : end]
        for pattern, replacement in _ESSAY_MARKUP:
            text = pattern.sub(replacement, text)
        yield Text(f"essay {number} of {mark[1]}", path.name, text.strip())


def _from_windows(found: re.Match[str]) -> str:
    return found[0].encode("latin-1").decode("cp1252", "ignore")


def _code(folder: Path) -> Iterator[Text]:
    """A .py file a document, without tests."""
    for path in sorted(folder.rglob("*.py")):
        name = path.relative_to(folder)
        if not any(re.match(r"(test|tests|test_.*|conftest.*)$", part) for part in name.parts):
            yield Text(name.as_posix(), name.as_posix(), decode(path.read_bytes()).strip())


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


READERS = {"texts": _texts, "wikitext": _wikitext, "essays": _essays, "code": _code}
