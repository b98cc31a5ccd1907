"""Sources that are too large for memory: shards, read one document after another.

A shard is a file of documents: .parquet, or a line of JSON each (.jsonl, .jsonl.gz, .json.gz), with
their text in the column or field `text`; or a .txt file, one document. A side's name in a shard's
path, as a word of its own, says whose it is (`train/07.parquet`, `en/c4-validation.00000.json.gz`);
a shard without one is for training.
"""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from experiments.texts.cleaning import SPLIT_FOLDERS, Text, clean, decode

SUFFIXES = (".parquet", ".jsonl", ".jsonl.gz", ".json.gz", ".txt")
ROWS = 256  # of a parquet file that are in memory at a time
Rows = Iterator[tuple[int, str]]


def by_side(folder: Path) -> dict[str, list[str]]:
    """Paths of a source's shards below its folder, by side, in a fixed order. Where none is held
    out by its name, the last one is, for validation and test (:func:`held_out`).

    Raises:
        ValueError: there are no shards, or there is one alone.
    """
    found: dict[str, list[str]] = {side: [] for side in SPLIT_FOLDERS}
    for path in sorted(folder.rglob("*")):
        if path.is_file() and path.name.endswith(SUFFIXES):
            name = path.relative_to(folder).as_posix()
            found[_side(name)].append(name)
    if not (found["validation"] or found["test"]) and found["train"]:
        found["validation"] = found["test"] = [found["train"].pop()]
    if not found["train"]:
        raise ValueError(f"{folder}: has no shards to train on beside what is held out "
                         f"({', '.join(SUFFIXES)})")  # fmt: skip
    return found


def _side(name: str) -> str:
    words = re.findall(r"[a-z]+", name.lower())
    return next((word for word in words if word in SPLIT_FOLDERS), "train")


def held_out(folder: Path) -> Iterator[Text]:
    """The documents of a source that are not for training; of a shard that is all there is for
    validation and test, they are one's and the other's in turn."""
    sides = by_side(folder)
    both = sides["validation"] == sides["test"]
    for side in ("validation", "test"):
        for name in sides[side]:
            for row, text in rows(folder / name):
                if not both or (row % 2 == 1) == (side == "test"):
                    yield Text(f"{name}:{row}", name, text, side)


def rows(path: Path, start: int = 0, stripe: int = 0, stripes: int = 1) -> Rows:
    """Numbers and texts of a shard's documents from row ``start`` on, of every ``stripes``-th from
    ``stripe``; empty ones are left out.

    Raises:
        ValueError: a document has no text.
    """
    for number, text in _every(path, start):
        if not isinstance(text, str):
            raise ValueError(f"{path}: row {number} has no field `text` that is a text")
        if number % stripes == stripe and text.strip():
            yield number, text.encode("utf-8", "replace").decode()  # JSON may hold half a character


def _every(path: Path, start: int) -> Iterator[tuple[int, Any]]:
    """All rows from ``start`` on, with whatever stands for their text."""
    if path.name.endswith(".parquet"):
        yield from _parquet(path, start)
    elif path.name.endswith(".txt"):
        if start == 0:
            yield 0, clean(decode(path.read_bytes()))
    else:
        with gzip.open(path) if path.name.endswith(".gz") else path.open("rb") as file:
            for number, line in enumerate(file):
                if number >= start:
                    found = json.loads(line) if line.strip() else {"text": ""}
                    yield number, found.get("text") if isinstance(found, dict) else None


def _parquet(path: Path, start: int) -> Iterator[tuple[int, Any]]:
    """Row groups before ``start`` are passed over unread."""
    import pyarrow.parquet as pq  # for such shards alone

    with pq.ParquetFile(path) as file:
        if "text" not in file.schema_arrow.names:
            raise ValueError(f"{path}: has no column `text`, but {file.schema_arrow.names}")
        first = 0
        for group in range(file.num_row_groups):
            total = file.metadata.row_group(group).num_rows
            if first + total > start:
                number = first
                for batch in file.iter_batches(ROWS, row_groups=[group], columns=["text"]):
                    for text in batch.column(0).to_pylist():
                        if number >= start:
                            yield number, text
                        number += 1
            first += total
