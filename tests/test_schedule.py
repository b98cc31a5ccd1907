"""The recipe's schedule of the training gate."""

from itertools import pairwise

import pytest

import focus


def test_it_cools_and_then_forwards_the_hard_mask_by_turns() -> None:
    every = [focus.recipe_schedule(step, 10) for step in range(10)]
    temperatures = [each["temperature"] for each in every]
    assert temperatures[0] == 0.3
    assert temperatures[-1] == 0.1
    ratios = [b / a for a, b in pairwise(temperatures)]
    assert ratios == pytest.approx([(1 / 3) ** (1 / 9)] * 9)
    assert [each.get("top_k") for each in every] == [None] * 4 + [2, 4, 1, 2, 4, 1]
    assert all(each["gate"] == "straight_through" for each in every[4:])


def test_one_step_is_the_last() -> None:
    assert focus.recipe_schedule(0, 1)["temperature"] == 0.1
    assert focus.recipe_schedule(12, 10)["temperature"] == 0.1
