"""How the leak stage compares two readings of one text."""

from __future__ import annotations

import pytest
import torch

from experiments.balances import window_for
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


@pytest.mark.parametrize("kept", [0.0, 0.2, 0.7])
@pytest.mark.parametrize("more", [0.0, 0.03, 0.2])
def test_a_wider_window_brings_a_mask_to_the_density_asked_for(kept: float, more: float) -> None:
    """Of a mask that keeps the same share beyond any window."""
    tokens, window, sinks = 200, 16, 2
    position = torch.arange(tokens)
    distance = position[:, None] - position

    def density(width: int) -> float:
        causal, sink = distance >= 0, (position < sinks).expand(tokens, tokens)
        near = causal & ((distance < width) | sink)
        return float(near.sum() + kept * (causal & ~near).sum()) / float(causal.sum())

    row = {"distant_density": kept, "window": window, "density": density(window)}
    found = window_for(row, density(window) + more * (1 - kept), tokens, sinks)
    assert density(found) >= density(window) + more * (1 - kept) - 1e-9
    assert found == window or density(found - 1) < density(window) + more * (1 - kept)
