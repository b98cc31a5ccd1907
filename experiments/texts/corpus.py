"""From a fetched source to documents on three sides: cleaned, told apart, chosen by length.

Nothing here knows a model: documents are chosen by characters, and tokenised where they are read
(:mod:`experiments.texts.documents`).
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from experiments import record, sources
from experiments.settings import Settings, Texts
from experiments.sources.files import sha256
from experiments.texts import shards
from experiments.texts.cleaning import Text, read
from experiments.texts.overlap import Dropped, HeldOut, distinct, without

ROOT = Path("data/texts")
SIDES = ("train", "validation", "test")
HELD_OUT = "held_out.npz"  # of a streamed text: what its training documents are compared with
Sides = dict[str, list[Text]]


@dataclass(frozen=True)
class Cut:
    """A source's documents by side, what was left out, how many were too short, and the largest
    overlap of two that stay."""

    source: sources.Source
    sides: Sides
    left_out: list[Dropped]
    too_short: int
    overlap: float


def build(name: str, chosen: Settings, folder: Path | None = None) -> dict[str, Any]:
    """Writes a text's sides as train.jsonl, validation.jsonl and test.jsonl, and texts.json. Of a
    streamed text train.jsonl lists the shards, and held_out.npz has marks of what it must not hold.

    Args:
        name: under ``texts`` in params.yaml.
        folder: where to write: data/texts/<name>.

    Returns:
        what texts.json holds.

    Raises:
        ValueError: there is no such text, its source is not there, or no document is long enough.
    """
    how = named(name, chosen)
    found = cut(name, chosen)
    held = held_out(how, chosen)
    train, twins = apart(found.sides["train"], held, how.max_overlap)
    sides = {**found.sides, "train": train}
    if not any(sides.values()):
        raise ValueError(f"texts.{name}.min_characters: no document of {how.source} has as many as "
                         f"{how.min_characters}; lower it")  # fmt: skip
    folder = folder or ROOT / name
    rows = {side: [describe(text) for text in texts] for side, texts in sides.items()}
    for side, texts in sides.items():
        record.write_text(folder / f"{side}.jsonl", "".join(map(as_line, texts)))
    if how.streamed:
        held = {name: [*found.sides["validation"], *found.sides["test"]], **held}
        rows["train"] = list_shards(folder, sources.ROOT / how.source, held)
    manifest = {
        "source": how.source,
        "licence": found.source.licence,
        "settings": how.plain(),
        "largest_overlap_of_two_documents": round(found.overlap, 4),
        "sides": {side: summary(rows[side], folder / f"{side}.jsonl") for side in sides},
        "too_short": found.too_short,
        "left_out": [vars(item) for item in (*found.left_out, *twins)],
    }
    record.write_json(folder / "texts.json", manifest)
    return manifest


def named(name: str, chosen: Settings) -> Texts:
    """The settings of a text; ValueError with the names that there are."""
    if name not in chosen.texts:
        raise ValueError(f"texts.{name}: no such text; there are {', '.join(chosen.texts)}")
    return chosen.texts[name]


def cut(name: str, chosen: Settings) -> Cut:
    """A text's documents by side, before its training side is kept apart from other texts'."""
    how = named(name, chosen)
    source = sources.find(how.source, sources.sources())
    place = sources.ROOT / source.name
    if not place.is_dir():
        raise ValueError(
            f"texts.{name}.source: {source.name} is not there: run `python -m "
            f"experiments.stages.fetch {source.name}` first"
        )
    found = list(shards.held_out(place)) if how.streamed else read(place, source.layout)
    # Length first: what is too short to be read at all makes no collection of what holds it.
    long = [text for text in found if len(text.text) >= how.min_characters]
    stay, dropped, overlap = distinct(long, how.max_overlap)
    return Cut(source, split(stay, how), dropped, len(found) - len(long), overlap)


def split(documents: list[Text], how: Texts) -> Sides:
    """Documents by side: the source's own where it has them, else by place in a fixed order.

    The order is that of the sha256 of the texts: it depends on neither names nor machine, and no
    side gets all the comedies because they come first in the alphabet.
    """
    ordered = sorted(documents, key=fingerprint_of)
    sides: Sides = {side: [] for side in SIDES}
    own = any(text.split for text in documents)
    kept = 0  # documents that are not held out for testing
    for place, text in enumerate(ordered, 1):
        if own:
            side = text.split or "train"
        elif place % how.test_every == 0:
            side = "test"
        else:
            kept += 1
            side = "train" if kept % how.validation_every else "validation"
        sides["validation" if how.development and side == "test" else side].append(text)
    return sides


def held_out(how: Texts, chosen: Settings) -> dict[str, list[Text]]:
    """What the texts of ``how.apart`` hold out, by their names."""
    sides = {other: cut(other, chosen).sides for other in how.apart}
    return {other: [*found["validation"], *found["test"]] for other, found in sides.items()}


def apart(train: list[Text], held: dict[str, list[Text]],
          max_overlap: float) -> tuple[list[Text], list[Dropped]]:  # fmt: skip
    """The training documents that no other text holds out, and those that one does."""
    gone: list[Dropped] = []
    for other, documents in held.items():
        stay = without(train, documents, max_overlap)
        gone += [Dropped(text.title, f"held out by {other}") for text in train if text not in stay]
        train = stay
    return train, gone


def list_shards(folder: Path, source: Path, held: dict[str, list[Text]]) -> list[dict[str, Any]]:
    """Writes train.jsonl of a streamed text, a line a shard and one for what must not be seen, and
    its marks; the lines of the shards. Texts are read as they are trained on, not here."""
    marks = HeldOut.of(text for documents in held.values() for text in documents)
    with (folder / HELD_OUT).open("wb") as file:
        np.savez(file, **vars(marks))
    rows = [{"shard": name, "bytes": (source / name).stat().st_size,
             "sha256": sha256(source / name)}
            for name in shards.by_side(source)["train"]]  # fmt: skip
    lines = [*rows, {"held_out": sha256(folder / HELD_OUT), "documents": len(marks.sizes)}]
    record.write_text(folder / "train.jsonl", "".join(json.dumps(line) + "\n" for line in lines))
    return rows


def fingerprint_of(text: Text) -> str:
    """sha256 of a document's cleaned text."""
    return hashlib.sha256(text.text.encode()).hexdigest()


def as_line(text: Text) -> str:
    """A document as a line of JSON."""
    row = {"title": text.title, "file": text.file, "text": text.text}
    return json.dumps(row, ensure_ascii=False) + "\n"


def describe(text: Text) -> dict[str, Any]:
    """A document's entry in texts.json."""
    return {"title": text.title, "file": text.file, "characters": len(text.text),
            "sha256": fingerprint_of(text)}  # fmt: skip


def summary(rows: list[dict[str, Any]], path: Path) -> dict[str, Any]:
    """A side's entry in texts.json."""
    count = "shards" if rows and "shard" in rows[0] else "documents"
    size = "bytes" if count == "shards" else "characters"
    return {
        count: len(rows),
        size: sum(row[size] for row in rows),
        "sha256": hashlib.sha256(path.read_bytes()).hexdigest(),
        "list": rows,
    }
