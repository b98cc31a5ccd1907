"""How the leak stage compares two readings of one text."""

from __future__ import annotations

import torch

from experiments.stages.leak import differs
from focus import Memberships


def groups(routings: int, tokens: int = 8) -> torch.Tensor:
    """(1, routings, tokens, 2) bool, every token in the first group."""
    return torch.tensor([True, False]).expand(1, routings, tokens, 2).clone()


def test_a_share_of_first_half_tokens_whose_groups_are_others() -> None:
    one, other = groups(1), groups(1)
    other[0, 0, [1, 6]] = ~other[0, 0, [1, 6]]  # the latter is in the second half
    assert differs(Memberships(one, None), Memberships(one, None), 4) == 0
    assert differs(Memberships(one, None), Memberships(other, None), 4) == 0.25


def test_queries_may_have_more_routings_than_keys() -> None:
    query, key, other = groups(4), groups(2), groups(2)
    other[:, :, 0] = ~other[:, :, 0]
    assert differs(Memberships(query, key), Memberships(query, other), 4) == 0.125
