"""Long-context tasks against full attention, question by question."""

from __future__ import annotations

import pytest

from analysis import ruler
from tests.analysis.answer_files import write_ruler


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


def test_another_mask_is_compared_at_its_budget(results):
    write_ruler(results.root, 0.1, found=0.5)
    write_ruler(results.root, 0.3, found=0.25, block="ruler_window", method={"name": "window"},
                against=["ruler_adapted", "ruler_recipe"])  # fmt: skip
    frame = ruler.table(results)
    own = frame[(frame["against"] == "ruler_recipe") & (frame["task"] == ruler.EVERY)].iloc[0]
    assert (own["found"], own["base_found"], own["points"]) == (25.0, 50.0, -25.0)
    assert own["nats"] == pytest.approx(0.2)
