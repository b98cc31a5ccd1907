"""Invented books, and settings that read them, for the tests of texts."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

from experiments.texts.cleaning import Text
from tests.timed import untrained

WORDS = [f"{a}{b}" for a in "bcdfghklmnprst" for b in ("a", "e", "i", "o", "u", "an", "en")]


def prose(seed: int, words: int = 400) -> str:
    """A text that shares no run of eight words with that of another seed."""
    rng = random.Random(seed)
    return " ".join(rng.choice(WORDS) for _ in range(words))


def as_texts(**documents: str) -> list[Text]:
    return [Text(title, f"{title}.txt", text) for title, text in documents.items()]


def fill(folder: Path, seeds: range, words: int = 400) -> Path:
    """A folder of books, one a seed."""
    folder.mkdir(parents=True, exist_ok=True)
    for seed in seeds:
        (folder / f"book{seed:02}.txt").write_text(prose(seed, words))
    return folder


def jsonl(path: Path, texts: list[str]) -> Path:
    """A shard of these documents."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    return path


def shelf(folder: Path, shards: int = 4, documents: int = 5, words: int = 60) -> Path:
    """A source of shards, with four books of each held-out side."""
    for number in range(shards):
        seeds = range(100 * number, 100 * number + documents)
        jsonl(folder / f"train/{number}.jsonl", [prose(seed, words) for seed in seeds])
    for side, first in (("validation", 10_000), ("test", 20_000)):
        jsonl(folder / f"{side}/0.jsonl", [prose(first + n) for n in range(4)])
    return folder


def small(params: dict[str, Any], **texts: dict[str, Any]) -> dict[str, Any]:
    """params.yaml with one experiment over the byte tokens of these texts, and two readings."""
    first = next(iter(texts))
    params["texts"] = {name: {"min_characters": 1000, **text} for name, text in texts.items()}
    reading = {"kind": "perplexity", "texts": [first], "documents": 2, "windows": 2, "context": 64}
    params["readings"] = {
        "search": reading,
        "final": {**reading, "side": "test", "final": True},
    }
    params["experiments"] = {
        "tiny": {
            "model": "tiny-llama",
            "method": {"name": "full"},
            "texts": first,
            "readings": ["search"],
            "regime": {"name": "full", "steps": 4, "batch_size": 2, "context": 64},
            "core": True,
        }
    }
    return {**params, **untrained(params, texts=first)}
