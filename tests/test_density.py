import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import focus
from focus.attention.dense import pairs_kept
from focus.density import PairCounts, count_pairs
from focus.groups import top_k_groups
from focus.state import attached
from tests.models import build, tiny, token_ids


def random_membership(tokens: int, groups: int, top_k: int, seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return top_k_groups(torch.rand(2, 2, tokens, groups, generator=generator), top_k)


@given(
    st.integers(1, 70), st.sampled_from([1, 2, 3, 4, 6, 31, 32, 70]), st.integers(1, 6),
    st.integers(1, 80), st.integers(0, 6), st.booleans(), st.integers(0, 10_000),
)  # fmt: skip
@settings(max_examples=60, deadline=None)
def test_counts_are_the_masks(tokens: int, groups: int, top_k: int, window: int, sinks: int,
                              padded: bool, seed: int) -> None:  # fmt: skip
    query = random_membership(tokens, groups, min(top_k, groups), seed)
    key = random_membership(tokens, groups, 1, seed + 1)
    real = torch.ones(2, tokens, dtype=torch.bool)
    if padded:
        real[0, : tokens // 3], real[1, tokens - tokens // 4 :] = False, False
    kept = pairs_kept(query, key, window, sinks, real)
    causal = pairs_kept(torch.ones_like(query), torch.ones_like(key), 1, 0, real)
    counts = count_pairs(query, key, window, sinks, real)
    assert counts.causal == int(causal.sum())
    assert counts.near + counts.distant_kept == int(kept.sum())
    assert counts.near + counts.distant == counts.causal


@given(st.integers(1, 60), st.integers(1, 40), st.integers(0, 4), st.integers(1, 70), st.booleans(),
       st.integers(0, 10_000))  # fmt: skip
@settings(max_examples=60, deadline=None)
def test_a_models_own_window_bounds_what_is_kept(tokens: int, window: int, sinks: int, limit: int,
                                                 padded: bool, seed: int) -> None:  # fmt: skip
    query, key = random_membership(tokens, 4, 2, seed), random_membership(tokens, 4, 1, seed + 1)
    real = torch.ones(2, tokens, dtype=torch.bool)
    if padded:
        real[0, : tokens // 3] = False
    extra = torch.randint(-1, tokens, (2, tokens, 3),
                          generator=torch.Generator().manual_seed(seed))  # fmt: skip
    position = torch.arange(tokens)
    extra = extra.masked_fill(extra > position[:, None], -1)
    kept = pairs_kept(query, key, window, sinks, real, extra)
    kept = kept & (position[:, None] - position < limit)
    counts = count_pairs(query, key, window, sinks, real, extra, limit)
    assert counts.near + counts.distant_kept == int(kept.sum())


@pytest.mark.parametrize(("groups", "top_k"), [(4, 1), (4, 2), (8, 2), (8, 3), (16, 2)])
def test_random_memberships_keep_the_hypergeometric_share(groups: int, top_k: int) -> None:
    membership = random_membership(3000, groups, top_k, 0)
    share = count_pairs(membership, None, 1, 0).distant_density
    expected = 1 - math.comb(groups - top_k, top_k) / math.comb(groups, top_k)
    assert share == pytest.approx(expected, abs=0.01)
    assert top_k / groups - 0.01 <= share <= min(1.0, top_k**2 / groups) + 0.01


def test_multi_probe_keeps_k_over_groups() -> None:
    query, key = random_membership(3000, 8, 3, 0), random_membership(3000, 8, 1, 1)
    assert count_pairs(query, key, 1, 0).distant_density == pytest.approx(3 / 8, abs=0.01)


@pytest.mark.parametrize("top_k", [3, 4])
def test_more_than_half_the_groups_keeps_every_pair(top_k: int) -> None:
    assert count_pairs(random_membership(200, 4, top_k, 0), None, 1, 0).density == 1.0


def test_counts_of_layers_add_up() -> None:
    one, other = PairCounts(10, 4, 6, 3), PairCounts(20, 5, 15, 1)
    assert PairCounts.total([one, None, other]) == PairCounts(30, 9, 21, 4)
    assert PairCounts.total([None]) == PairCounts(0, 0, 0, 0)


@pytest.mark.parametrize("use_cache", [False, True])
def test_texts_within_the_window_count_every_routing(use_cache: bool) -> None:
    config = focus.FocusConfig.recipe(num_groups=4, window=12)
    model = focus.attach(build("llama"), config, seed=0)
    causal = []
    for tokens in (12, 13):
        with torch.no_grad():
            model(token_ids(2, tokens), use_cache=use_cache)
        routings = attached(model).routers[0].query_routings
        causal.append(focus.pair_counts(model)[0].causal)
        assert causal[-1] == 2 * routings * tokens * (tokens + 1) // 2


def test_padding_alone_has_no_density() -> None:
    model = focus.attach(tiny("tiny-llama"), focus.FocusConfig(num_groups=4, window=4))
    with torch.no_grad():
        model(token_ids(2, 20), attention_mask=torch.zeros(2, 20))
    assert all(math.isnan(share) for share in focus.density(model).values())
