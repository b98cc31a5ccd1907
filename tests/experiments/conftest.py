"""What experiments are tested with: one thread, a folder to train in, small sets of questions."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Iterator
from itertools import product
from pathlib import Path
from random import Random
from typing import Any

import pytest
from datasets import Dataset

from experiments.ruler import material
from experiments.settings import Settings
from experiments.sources import catalogue
from tests.experiments.training import workspace
from tests.threads import threads

CACHED = (material.sentences, material.words, material.squad, material.hotpotqa)
WORDS = ["".join(each) for each in product("abcdefgh", "ijklmnop", "qrstuvwxyz", "bdfh")]
PIQA = [{"goal": f"open box {n}", "sol1": "lift the lid", "sol2": "eat it " * (n + 1),
         "label": n % 2} for n in range(8)]  # fmt: skip
TRUTH = [{"question": "Is it so?", "mc1_targets": {"no": 0, "yes": 1},
          "mc2_targets": {"no": 0, "yes": 1, "it is": 1}}]  # fmt: skip

SUMS = [{"question": f"{n} and 1?", "answer": f"{n} + 1 = {n + 1} #### {n + 1}"} for n in range(6)]


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Models this small are faster so, above all beside other processes."""
    with threads(1):
        yield


@pytest.fixture
def work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, params: dict[str, Any]
) -> Callable[..., Settings]:
    """Makes a folder, goes there, and gives the settings with further experiments."""

    def made(**experiments: Any) -> Settings:
        monkeypatch.chdir(tmp_path)
        return workspace(tmp_path, params, experiments)

    return made


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


@pytest.fixture
def questions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Eight of PIQA, six sums, three of LAMBADA, one of TruthfulQA below ``tmp_path``."""
    monkeypatch.setattr(catalogue, "ROOT", tmp_path)
    folder = tmp_path / "benchmarks" / "hf_datasets" / "piqa" / "plain_text" / "validation"
    Dataset.from_list(PIQA).save_to_disk(folder)
    words = [{"request": {"context": " a b" * (n + 1), "continuation": " c"}} for n in range(3)]
    sums = [{"doc": sum_} for sum_ in SUMS]
    for name, rows in (("lambada/bpb_0shot", words), ("gsm8k/gold_bpb_5shot", sums)):
        path = tmp_path / "benchmarks" / "oe_eval_tasks" / name
        path.mkdir(parents=True)
        with gzip.open(path / "requests.jsonl.gz", "wt", encoding="utf-8") as file:
            file.writelines(json.dumps(row) + "\n" for row in rows)
    (tmp_path / "truthfulqa").mkdir()
    (tmp_path / "truthfulqa" / "mc_task.json").write_text(json.dumps(TRUTH))
    return tmp_path
