"""What prompts are made of: sentences, words, and questions over paragraphs."""

from __future__ import annotations

import json
import re
from collections import Counter
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from experiments.sources import catalogue

SOURCE = "ruler"
SENTENCE = re.compile(r"(?<=[.?!])\s+(?=[A-Z\"'])")
COMMON, RARE = 300, 2300  # ranks of the words that keys and lists are drawn from


@dataclass(frozen=True)
class Asked:
    """A question, its answer, and the paragraphs that it is answered from."""

    question: str
    answer: str
    paragraphs: tuple[str, ...]


@cache
def sentences() -> tuple[str, ...]:
    """Of the essays, in their order."""
    text = re.sub(r"\s+", " ", _json("PaulGrahamEssays")["text"])
    return tuple(each.strip() for each in SENTENCE.split(text) if each.strip())


@cache
def words() -> tuple[str, ...]:
    """Plain words of the essays, four to eight letters, neither the commonest nor the rarest."""
    found = re.findall(r"\b[a-z]{4,8}\b", " ".join(sentences()))
    ranked = sorted(Counter(found).items(), key=lambda each: (-each[1], each[0]))
    return tuple(word for word, _ in ranked[COMMON:RARE])


@cache
def squad() -> tuple[Asked, ...]:
    """SQuAD 2.0's answerable development questions."""
    return tuple(
        Asked(each["question"].strip(), each["answers"][0]["text"], (paragraph["context"],))
        for article in _json("squad")["data"]
        for paragraph in article["paragraphs"]
        for each in paragraph["qas"]
        if each["answers"]
    )


@cache
def hotpotqa() -> tuple[Asked, ...]:
    """HotpotQA's development questions that have an answer beside yes and no; two paragraphs
    each."""
    found = []
    for each in _json("hotpotqa"):
        needed = {title for title, _ in each["supporting_facts"]}
        paragraphs = tuple(f"{title}: {''.join(lines)}" for title, lines in each["context"]
                           if title in needed)  # fmt: skip
        if each["answer"] not in ("yes", "no"):
            found.append(Asked(each["question"], each["answer"], paragraphs))
    return tuple(found)


def _json(name: str) -> Any:
    path = Path(catalogue.ROOT) / SOURCE / f"{name}.json"
    if not path.is_file():
        raise ValueError(f"{path}: is not there; run `python -m experiments.stages.fetch {SOURCE}` "
                         "first")  # fmt: skip
    return json.loads(path.read_text(encoding="utf-8"))
