"""Long-context tasks against full attention, question by question."""

from __future__ import annotations

import pytest

from analysis import ruler
from tests.analysis.result_files import write_ruler


def test_questions_are_paired_and_tasks_told_apart(results):
    write_ruler(results.root, 0.2)
    frame = ruler.table(results)
    assert set(frame["task"]) == {ruler.EVERY, "single", "squad"}
    assert set(frame["length"]) == {1024, 2048}
    every = frame[frame["task"] == ruler.EVERY].iloc[0]
    assert (every["questions"], every["found"], every["base_found"]) == (8, 50.0, 100.0)
    assert every["nats"] == pytest.approx(0.2)
    assert every["points"] == pytest.approx(-50)
    assert every["points_low"] < -50 < every["points_high"]


def test_nothing_read_is_an_empty_table(results):
    assert ruler.table(results).empty
