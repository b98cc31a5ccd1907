"""Lists hold every token in its groups, in order; patterns give each query one list."""

from __future__ import annotations

import pytest
import torch

from focus.attention.plan import build_lists, build_pattern_lists, code_size, patterns


def membership(rows: list[list[int]]) -> torch.Tensor:
    return torch.tensor(rows, dtype=torch.bool).unsqueeze(0)


def test_aligned_lists() -> None:
    lists = build_lists(membership([[1, 0], [0, 1], [1, 1], [0, 1]]), None, None)
    assert lists.aligned
    assert lists.repeats
    assert lists.key_index.tolist() == [0, 2, 1, 2, 3]
    assert lists.key_offsets == [0, 2, 5]


def test_sinks_join_every_list_as_keys_alone() -> None:
    sinks = torch.tensor([[True, False, False]])
    lists = build_lists(membership([[1, 0], [0, 1], [1, 0]]), None, sinks)
    assert lists.key_index.tolist() == [0, 2, 0, 1]
    assert lists.kept is not None
    assert lists.kept.tolist() == [True, True, False, True]


def test_staircase_counts_keys_at_or_before_each_query() -> None:
    queries, keys = membership([[1], [1], [1], [1]]), membership([[0], [1], [0], [1]])
    lists = build_lists(queries, keys, None)
    assert not lists.aligned
    assert lists.stairs is not None
    assert lists.stairs.tolist() == [0, 1, 1, 2]


def test_several_routings_stand_one_after_the_other() -> None:
    both = torch.cat([membership([[1, 0], [0, 1]]), membership([[0, 1], [0, 1]])])
    lists = build_lists(both, None, None)
    assert lists.key_index.tolist() == [0, 1, 2, 3]
    assert lists.key_offsets == [0, 1, 2, 2, 4]


def test_patterns() -> None:
    rows = membership([[1, 1, 0], [0, 1, 1], [1, 1, 0], [0, 0, 0]])
    found = patterns(rows, 10)
    assert found is not None
    pattern, which = found
    assert which.tolist()[0][3] == -1
    assert torch.equal(pattern[which[0, :3]], rows[0, :3])
    assert patterns(rows, 1) is None
    assert patterns(torch.ones(1, 2, 63, dtype=torch.bool), 10) is None


def test_pattern_lists_hold_each_query_once_and_all_keys_that_meet_it() -> None:
    generator = torch.Generator().manual_seed(0)
    own = torch.rand(2, 40, 5, generator=generator) < 0.4
    own[..., 0] |= ~own.any(-1)
    keys = torch.rand(2, 40, 5, generator=generator) < 0.3
    found = patterns(own, 1000)
    assert found is not None
    lists = build_pattern_lists(own, keys, None, found)
    assert not lists.repeats
    assert sorted(lists.query_index.tolist()) == list(range(80))
    meet = (own.float() @ keys.float().transpose(1, 2)) > 0
    for n in range(len(lists.query_offsets) - 1):
        queries = lists.query_index[lists.query_offsets[n] : lists.query_offsets[n + 1]]
        kept = lists.key_index[lists.key_offsets[n] : lists.key_offsets[n + 1]]
        for row in queries.tolist():
            wanted = meet[row // 40, row % 40].nonzero().squeeze(1) + row // 40 * 40
            assert kept.tolist() == wanted.tolist()


@pytest.mark.parametrize("scale", [1e-3, 0.125, 1.0, 40.0])
def test_code_size_is_a_power_of_two_that_suffices(scale: float) -> None:
    size = code_size(scale, torch.bfloat16)
    assert size**2 * scale >= 32
    assert torch.tensor(size).log2().item() % 1 == 0
