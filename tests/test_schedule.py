"""The recipe's schedule of the training gate."""

from itertools import pairwise

import pytest
import torch

import focus
from tests.models import tiny, token_ids


def test_it_cools_and_then_forwards_the_hard_mask_by_turns() -> None:
    every = [focus.recipe_schedule(step, 10) for step in range(10)]
    temperatures = [each["temperature"] for each in every]
    assert temperatures[0] == 0.3
    assert temperatures[-1] == 0.1
    ratios = [b / a for a, b in pairwise(temperatures)]
    assert ratios == pytest.approx([(1 / 3) ** (1 / 9)] * 9)
    assert [each["top_k"] for each in every] == [1, 2, 4, 1, 2, 4, 1, 2, 4, 1]
    assert [each.get("gate") for each in every] == [None] * 4 + ["straight_through"] * 6
    assert focus.recipe_schedule(9, 10, hard_from=1.0) == {"temperature": 0.1}


def test_one_step_is_the_last() -> None:
    assert focus.recipe_schedule(0, 1)["temperature"] == 0.1
    assert focus.recipe_schedule(12, 10)["temperature"] == 0.1


def test_fewer_groups_than_it_names_are_refused_in_the_first_steps() -> None:
    model = focus.attach(tiny("tiny-llama"), focus.FocusConfig.recipe(num_groups=3), seed=0)
    for step in range(2):
        with focus.mode(model, "soft", **focus.recipe_schedule(step, 90)):
            pass
    with pytest.raises(ValueError, match="top_k: must be at most num_groups = 3, got 4"):
        focus.mode(model, "soft", **focus.recipe_schedule(2, 90))


def test_the_mask_that_its_first_part_names_changes_nothing() -> None:
    config = focus.FocusConfig.recipe(num_groups=6, window=16)
    model = focus.attach(tiny("tiny-llama"), config, seed=0).train()
    logits = []
    for mask in ({}, {"top_k": 4}, {"top_k": 1, "probe": "symmetric"}):
        with torch.no_grad(), focus.mode(model, "soft", temperature=0.3, **mask):
            logits.append(model(token_ids(2, 64)).logits)
    assert torch.equal(logits[0], logits[1])
    assert torch.equal(logits[0], logits[2])
