"""Windows that hold a passage twice; what counts as a changed group."""

from __future__ import annotations

import torch

from experiments.readings.copying import windows
from experiments.readings.leak import differs
from experiments.readings.subject import label
from experiments.settings import Copying, Mask
from focus import Memberships

HOW = Copying(texts=("any",), context=50, passage=10, lead=2, distances=(15, 40))


def test_the_window_ends_in_what_stood_before_at_that_distance() -> None:
    ids = torch.arange(60)
    seen, new = windows(ids, HOW)
    assert seen.shape == new.shape == (2, 50)
    for window, other, distance in zip(seen, new, HOW.distances, strict=True):
        first = slice(40 - distance, 50 - distance)
        assert torch.equal(window[:40], ids[:40])
        assert torch.equal(window[40:], window[first])
        assert torch.equal(other[40:], window[40:])
        assert torch.equal(other[first], ids[50:])  # new: it is nowhere before the end
        assert not set(other[40:].tolist()) & set(other[:40].tolist())
    assert torch.equal(ids, torch.arange(60))


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


def test_budgets_have_names() -> None:
    assert label(0.125) == "0.125"
    assert label(None) == "own"
    assert label(Mask(top_k=2, ngram=3)) == "k2.symmetric.n3.causal"
