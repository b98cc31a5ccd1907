"""Small sets of questions where the real ones would be."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest
from datasets import Dataset

from experiments.sources import catalogue

PIQA = [{"goal": f"open box {n}", "sol1": "lift the lid", "sol2": "eat it " * (n + 1),
         "label": n % 2} for n in range(8)]  # fmt: skip
TRUTH = [{"question": "Is it so?", "mc1_targets": {"no": 0, "yes": 1},
          "mc2_targets": {"no": 0, "yes": 1, "it is": 1}}]  # fmt: skip

SUMS = [{"question": f"{n} and 1?", "answer": f"{n} + 1 = {n + 1} #### {n + 1}"} for n in range(6)]


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
