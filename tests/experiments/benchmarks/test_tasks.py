"""lm-eval's tasks over local documents."""

from __future__ import annotations

from pathlib import Path

import pytest

from experiments.benchmarks import files, tasks


def test_prompts_and_choices_are_lm_evals(questions: Path, tmp_path: Path) -> None:
    task = tasks.load("piqa", 0, tmp_path)
    document = task.eval_docs[1]
    assert task.doc_to_text(document) == "Question: open box 1\nAnswer:"
    assert task.doc_to_choice(document) == ["lift the lid", "eat it eat it "]
    assert int(task.doc_to_target(document)) == 1


def test_requests_of_another_harness_become_documents(questions: Path, tmp_path: Path) -> None:
    task = tasks.load("lambada_openai", 0, tmp_path)
    document = task.eval_docs[0]
    assert (task.doc_to_text(document), task.doc_to_target(document)) == (" a b", " c")


def test_right_answers_come_first(questions: Path, tmp_path: Path) -> None:
    document = tasks.load("truthfulqa_mc2", 0, tmp_path).eval_docs[0]
    assert document["mc1_targets"] == {"choices": ["yes", "no"], "labels": [1, 0]}
    assert document["mc2_targets"]["labels"] == [1, 1, 0]


def test_worked_examples_are_other_documents(questions: Path, tmp_path: Path) -> None:
    task = tasks.load("piqa", 3, tmp_path)
    task.set_fewshot_seed(0)
    prompt = task.fewshot_context(task.eval_docs[0], 3)
    assert prompt.count("Question:") == 4
    assert prompt.count("open box 0") == 1


def test_what_is_not_there_is_named_with_its_cure(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(files.catalogue, "ROOT", tmp_path)
    with pytest.raises(ValueError, match=r"run `python -m experiments.stages.fetch benchmarks`"):
        tasks.load("piqa", 0, tmp_path)
    with pytest.raises(ValueError, match=r"^tasks: 'moon' is unknown; there are hellaswag"):
        tasks.load("moon", 0, tmp_path)


def test_a_task_tells_where_its_documents_come_from() -> None:
    assert files.sources(["piqa", "gsm8k"]) == ["benchmarks"]
    assert files.sources(["piqa", "truthfulqa_mc1"]) == ["benchmarks", "truthfulqa"]
    assert all(Path(tasks.HERE / task.config).is_file() for task in files.TASKS.values())
