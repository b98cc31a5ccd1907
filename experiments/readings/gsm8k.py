"""GSM8K questions with eight worked examples before each, as the `benchmarks` source has them."""

from __future__ import annotations

import gzip
import json
import re
from dataclasses import dataclass
from pathlib import Path

from experiments.sources import catalogue as sources

FILE = "oe_eval_tasks/gsm8k/gold_bpb_5shot/requests.jsonl.gz"
NUMBER = re.compile(r"-?\d[\d,]*(?:\.\d+)?")


@dataclass(frozen=True)
class Question:
    """A test question: its number, the prompt with worked examples, and the answer's number."""

    number: int
    prompt: str
    answer: str


def load(count: int, root: str | Path = sources.ROOT) -> list[Question]:
    """The first questions of the test set.

    Raises:
        ValueError: the source was not fetched, or has fewer questions.
    """
    path = Path(root) / "benchmarks" / FILE
    if not path.is_file():
        raise ValueError(
            f"{path}: no such file; run `python -m experiments.stages.fetch benchmarks` first"
        )
    with gzip.open(path, "rt", encoding="utf-8") as file:
        found = [_question(json.loads(line)) for line, _ in zip(file, range(count), strict=False)]
    if len(found) < count:
        raise ValueError(f"generation.questions: {count} asked for, the test set has {len(found)}")
    return found


def _question(row: dict) -> Question:
    return Question(row["doc_id"], row["request"]["context"], row["doc"]["short_answer"])


def answer(text: str) -> str | None:
    """The number that a chain of thought ends with: the last one before a further question."""
    numbers = NUMBER.findall(text.split("\nQuestion:")[0])
    return numbers[-1].replace(",", "").rstrip(".") if numbers else None
