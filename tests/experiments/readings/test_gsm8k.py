"""GSM8K's questions and answers."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from experiments.readings import gsm8k
from experiments.readings.gsm8k import Question


@pytest.mark.parametrize(
    ("text", "number"),
    [
        (" She has 3 + 4 = 7. So the answer is 7.\n\nQuestion: There are 12 ducks.", "7"),
        ("It is $1,250.50 a day", "1250.50"),
        ("minus -3", "-3"),
        ("So the answer is 18.", "18"),
        ("I do not know", None),
    ],
)
def test_the_answer_of_a_chain_of_thought(text: str, number: str | None) -> None:
    assert gsm8k.answer(text) == number


def test_questions_are_read_in_order(tmp_path: Path) -> None:
    path = tmp_path / "benchmarks" / gsm8k.FILE
    path.parent.mkdir(parents=True)
    rows = [
        {"doc_id": i, "request": {"context": f"Question {i}"}, "doc": {"short_answer": str(i)}}
        for i in range(3)
    ]
    with gzip.open(path, "wt", encoding="utf-8") as file:
        file.writelines(json.dumps(row) + "\n" for row in rows)
    assert gsm8k.load(2, tmp_path) == [
        Question(0, "Question 0", "0"),
        Question(1, "Question 1", "1"),
    ]
    with pytest.raises(ValueError, match="questions: 4"):
        gsm8k.load(4, tmp_path)
    with pytest.raises(ValueError, match="fetch benchmarks"):
        gsm8k.load(4, tmp_path / "elsewhere")
