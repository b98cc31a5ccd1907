"""Benchmark scores: paired by question, with the exposure under a cell's own window."""

from __future__ import annotations

import pytest

from analysis import benchmarks
from analysis.figures import benchmarks as figure
from analysis.rows import Missing
from tests.analysis.answer_files import write_answers
from tests.analysis.result_files import PAPER


def test_the_paper_s_four_stand_together_too(results):
    for task, changed in zip(benchmarks.FOUR, (4, 0, 0, 0), strict=True):
        write_answers(results.root, changed=changed, exposure=0.5, task=task)
    frame = benchmarks.table(results).set_index("texts")
    assert frame.loc["hellaswag", "points"] == pytest.approx(-40)
    assert frame.loc[benchmarks.EVERY, "points"] == pytest.approx(-10)
    assert frame.loc[benchmarks.EVERY, "questions"] == 40


def test_three_of_the_four_are_not_put_together(results):
    for task in benchmarks.FOUR[:3]:
        write_answers(results.root, task=task)
    assert benchmarks.EVERY not in set(benchmarks.table(results)["texts"])


def test_exposure_goes_by_the_window_of_the_mask(results):
    """Prompts of 90 tokens: a window of 16 leaves 74 queries with something beyond it."""
    for block, window in (("answers_paper", 128), ("answers_paper_window", 16)):
        write_answers(results.root, exposure=0.9, block=block,
                      method=PAPER | {"window": window, "sinks": 0})  # fmt: skip
    frame = benchmarks.table(results).set_index("experiment")
    assert frame.loc["answers_paper", "exposed_pairs_percent"] == 0
    assert frame.loc["answers_paper_window", "exposed_pairs_percent"] == pytest.approx(
        100 * 74 * 75 / (90 * 91)
    )


def test_one_place_is_no_figure(results):
    for task in benchmarks.FOUR:
        write_answers(results.root, task=task)
    with pytest.raises(Missing):
        figure.draw(results)
