"""A small set of questions in the place of the fetched one."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from random import Random

import pytest

from experiments.ruler import material
from experiments.sources import catalogue

CACHED = (material.sentences, material.words, material.squad, material.hotpotqa)
WORDS = ["".join(each) for each in product("abcdefgh", "ijklmnop", "qrstuvwxyz", "bdfh")]


@pytest.fixture
def material_of_letters(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    folder = tmp_path / material.SOURCE
    folder.mkdir()
    rng = Random(0)
    ranked = [word for place, word in enumerate(WORDS) for _ in range(len(WORDS) - place)]
    lines = [" ".join(rng.choices(ranked, k=9)).capitalize() + "." for _ in range(6000)]
    asked = [{"question": f"Who is {n}?", "answers": [{"text": f"Nobody {n}"}]} for n in range(3)]
    hard = {"question": "Unanswerable?", "answers": []}
    squad = {"data": [{"paragraphs": [
        {"context": f"Nobody {n} it is, they say.", "qas": [asked[n], hard]} for n in range(3)
    ]}]}  # fmt: skip
    hotpot = [
        {"question": f"Where is {n}?", "answer": answer, "supporting_facts": [["A", 0], ["B", 0]],
         "context": [["A", [f"It is {n}. "]], ["B", [f"So {n} is here."]], ["C", ["No."]]]}
        for n, answer in enumerate(["here", "yes", "there"])
    ]  # fmt: skip
    for name, content in (("PaulGrahamEssays", {"text": " ".join(lines)}), ("squad", squad),
                          ("hotpotqa", hotpot)):  # fmt: skip
        (folder / f"{name}.json").write_text(json.dumps(content))
    monkeypatch.setattr(catalogue, "ROOT", tmp_path)
    for each in CACHED:
        each.cache_clear()
    yield
    for each in CACHED:
        each.cache_clear()
