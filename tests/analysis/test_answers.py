"""Answers: scores paired by question, with the exposure under a cell's own window; long-context
tasks against full attention; how far answers are, against what was gained."""

from __future__ import annotations

import pytest

from analysis import answers
from analysis.figures import answers as figures
from analysis.rows import Missing
from tests.analysis.answer_files import write_answers, write_chat, write_ruler
from tests.analysis.result_files import PAPER


def test_the_paper_s_four_stand_together_too(results):
    for task, changed in zip(answers.FOUR, (4, 0, 0, 0), strict=True):
        write_answers(results.root, changed=changed, exposure=0.5, task=task)
    frame = answers.scores(results).set_index("texts")
    assert frame.loc["hellaswag", "points"] == pytest.approx(-40)
    assert frame.loc[answers.ALL_FOUR, "points"] == pytest.approx(-10)
    assert frame.loc[answers.ALL_FOUR, "questions"] == 40


def test_three_of_the_four_are_not_put_together(results):
    for task in answers.FOUR[:3]:
        write_answers(results.root, task=task)
    assert answers.ALL_FOUR not in set(answers.scores(results)["texts"])


def test_exposure_goes_by_the_window_of_the_mask(results):
    """Prompts of 90 tokens: a window of 16 leaves 74 queries with something beyond it."""
    for block, window in (("answers_paper", 128), ("answers_paper_window", 16)):
        write_answers(results.root, exposure=0.9, block=block,
                      method=PAPER | {"window": window, "sinks": 0})  # fmt: skip
    alone = {"name": "window", "ngram": 0, "sinks": 0}
    write_answers(results.root, exposure=0.9, block="answers_longformer", method=alone)
    frame = answers.scores(results).set_index("experiment")
    assert frame.loc["answers_paper", "exposed_pairs_percent"] == 0
    assert frame.loc["answers_longformer", "exposed_pairs_percent"] == 0
    assert frame.loc["answers_paper_window", "exposed_pairs_percent"] == pytest.approx(
        100 * 74 * 75 / (90 * 91)
    )


def test_one_place_is_no_figure(results):
    for task in answers.FOUR:
        write_answers(results.root, task=task)
    with pytest.raises(Missing):
        figures.scores(results)


def test_questions_are_paired_and_tasks_told_apart(results):
    write_ruler(results.root, 0.2)
    frame = answers.tasks(results)
    assert set(frame["task"]) == {answers.ALL_TASKS, "single", "squad"}
    assert set(frame["length"]) == {1024, 2048}
    every = frame[frame["task"] == answers.ALL_TASKS].iloc[0]
    assert (every["questions"], every["found"], every["base_found"]) == (8, 50.0, 100.0)
    assert every["nats"] == pytest.approx(0.2)
    assert every["points"] == pytest.approx(-50)
    assert every["points_low"] < -50 < every["points_high"]


def test_another_mask_is_compared_at_its_budget(results):
    write_ruler(results.root, 0.1, found=0.5)
    write_ruler(results.root, 0.3, found=0.25, block="ruler_window", method={"name": "window"},
                against=["ruler_adapted", "ruler_recipe"])  # fmt: skip
    frame = answers.tasks(results)
    own = frame[(frame["against"] == "ruler_recipe") & (frame["task"] == answers.ALL_TASKS)].iloc[0]
    assert (own["found"], own["base_found"], own["points"]) == (25.0, 50.0, -25.0)
    assert own["nats"] == pytest.approx(0.2)


def test_distances_stand_beside_what_was_gained(results):
    write_chat(results.root, 0.3, 0.2)
    frame = answers.distances(results).set_index(["experiment", "before"])
    lora, mask = frame.loc[("lora4", 1024)], frame.loc[("answers_paper", 1024)]
    assert lora["divergence"] == pytest.approx(0.3 * 1.15)
    assert lora["low"] < lora["divergence"] < lora["high"]
    assert (lora["questions"], lora["rate"], lora["role"]) == (4, 0.002, "adapted")
    assert lora["gain"] < 0 < mask["gain"]
    assert frame.loc[("answers_paper", 0), "divergence"] == 0


def test_questions_are_paired(results):
    write_chat(results.root, 0.3, 0.2)
    found = answers.apart(results, "lora4", "answers_paper", 1024)
    assert found.value == pytest.approx(0.115)
    assert found.documents == 4
    with pytest.raises(Missing):
        answers.apart(results, "lora4", "lora16", 1024)
