import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from focus import FocusConfig, Router
from focus.routing import (
    balance_statistics,
    lagged_potentials,
    sinkhorn,
    sinkhorn_potentials,
    top_k_groups,
)

HIDDEN, TOKENS = 24, 96


def router(seed: int = 0, key_heads: int = 2, **changes: object) -> Router:
    config = FocusConfig(**{"num_groups": 4, "top_k": 1, **changes})  # type: ignore[arg-type]
    return Router(config, HIDDEN, key_heads, torch.Generator().manual_seed(seed)).eval()


def hidden(batch: int = 2, tokens: int = TOKENS, seed: int = 1) -> torch.Tensor:
    return torch.randn(batch, tokens, HIDDEN, generator=torch.Generator().manual_seed(seed))


def test_gpt2_has_the_papers_148224_parameters() -> None:
    config = FocusConfig(num_groups=4, routing_dim=16)
    layer = Router(config, 768, 12)
    assert 12 * sum(p.numel() for p in layer.parameters()) == 148_224


@given(st.integers(2, 8), st.integers(20, 80), st.floats(0.2, 3.0), st.integers(0, 10_000))
@settings(max_examples=25, deadline=None)
def test_sinkhorn_marginals(groups: int, tokens: int, spread: float, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    scores = spread * torch.randn(1, 1, 1, tokens, groups, generator=generator).double()
    assignments = sinkhorn(scores, 300).softmax(-1)
    assert torch.allclose(assignments.sum(-1), torch.ones(1).double())
    expected = torch.full((groups,), tokens / groups).double()
    assert torch.allclose(assignments.sum(-2).flatten(), expected, rtol=1e-3)


def test_sinkhorn_is_the_plain_iteration() -> None:
    scores = torch.randn(1, 1, 1, 40, 4).double()
    plain = scores.exp()
    for _ in range(10):
        plain = plain / plain.sum(-2, keepdim=True)
        plain = plain / plain.sum(-1, keepdim=True)
    assert torch.allclose(sinkhorn(scores, 10).softmax(-1), plain)


def test_sinkhorn_survives_scores_that_overflow_exp() -> None:
    assert sinkhorn(1e4 * torch.randn(1, 1, 1, 50, 4), 10).softmax(-1).isfinite().all()


def test_padding_takes_no_part() -> None:
    layer, states = router(), hidden()
    real = torch.ones(2, TOKENS, dtype=torch.bool)
    real[0, :30], real[1, -20:] = False, False
    states[~real] = 1e3
    for balance in ("sinkhorn", "softmax", "causal"):
        both = layer.balanced_logits(states, real, balance)
        assert both.isfinite().all()
        alone = layer.balanced_logits(states[:1, 30:], None, balance)
        assert torch.allclose(both[:1, ..., 30:, :], alone, atol=1e-5)
        alone = layer.balanced_logits(states[1:, :-20], None, balance)
        assert torch.allclose(both[1:, ..., :-20, :], alone, atol=1e-5)


def test_frozen_potentials_equal_sinkhorns_on_the_batch_they_came_from() -> None:
    layer, states = router(routers="kv_head", sides="two"), hidden(batch=1)
    layer.train()
    trained = layer.balanced_logits(states)
    layer.eval()
    assert int(layer.batches) == 1
    assert torch.allclose(layer.balanced_logits(states), trained, atol=1e-5)
    assert torch.allclose(trained, layer.balanced_logits(states, balance="sinkhorn"), atol=1e-5)


def test_potentials_are_learnt_only_in_training_with_gradients() -> None:
    layer = router()
    layer(hidden())
    layer.train()
    with torch.no_grad():
        layer(hidden())
    assert int(layer.batches) == 0
    layer(hidden())
    assert int(layer.batches) == 1


@pytest.mark.parametrize("potentials", ["frozen", "lagged"])
@given(st.integers(1, TOKENS - 1), st.integers(0, 10_000))
@settings(max_examples=15, deadline=None)
def test_no_future_token_changes_a_causal_assignment(potentials: str, cut: int, seed: int) -> None:
    layer = router(potentials=potentials, lag_stride=16, lag_tokens=32)
    layer.potentials.normal_(generator=torch.Generator().manual_seed(seed))
    states = hidden(1, seed=seed)
    other = torch.cat([states[:, :cut], 5 * hidden(1, seed=seed + 1)[:, cut:]], 1)
    one, two = layer.balanced_logits(states), layer.balanced_logits(other)
    assert torch.equal(one[..., :cut, :], two[..., :cut, :])


def test_sequence_wide_sinkhorn_does_see_the_future() -> None:
    layer, states = router(balance="sinkhorn"), hidden(1)
    other = torch.cat([states[:, :48], 5 * hidden(1, seed=9)[:, 48:]], 1)
    one, two = layer.balanced_logits(states), layer.balanced_logits(other)
    assert not torch.allclose(one[..., :48, :], two[..., :48, :], atol=1e-3)


def test_lagged_potentials_are_sinkhorns_of_the_tokens_before() -> None:
    config = FocusConfig(num_groups=4, potentials="lagged", lag_stride=16, lag_tokens=32)
    scores = torch.randn(1, 1, 1, 70, 4)
    found = lagged_potentials(scores, config, None)
    assert not found[..., :16, :].any()
    expected = sinkhorn_potentials(scores[..., 16:48, :], config.sinkhorn_iterations)
    assert torch.equal(found[..., 50, :], expected)


def test_dot_similarity_is_the_papers_product() -> None:
    layer, states = router(similarity="dot"), hidden()
    plain = states @ layer.projection[0, 0] @ layer.centroids[0, 0].T / 0.1
    assert torch.allclose(layer.scores(states)[:, 0, 0], plain, atol=1e-4)


@given(st.integers(1, 8), st.integers(1, 8), st.integers(0, 10_000))
@settings(max_examples=25, deadline=None)
def test_top_k_takes_exactly_k_even_in_ties(groups: int, top_k: int, seed: int) -> None:
    top_k = min(top_k, groups)
    generator = torch.Generator().manual_seed(seed)
    scores = torch.randint(0, 3, (2, 1, 30, groups), generator=generator).float()
    taken = top_k_groups(scores, top_k)
    assert bool((taken.sum(-1) == top_k).all())
    left = scores.masked_fill(taken, -1).amax(-1)
    assert bool((scores.masked_fill(~taken, 9).amin(-1) >= left).all())


def test_memberships_by_probe_and_sides() -> None:
    logits = router(sides="two").balanced_logits(hidden())
    symmetric = router(top_k=2).memberships(logits[:, :1])
    assert symmetric.key is None
    assert bool((symmetric.query.sum(-1) == 2).all())
    probing = router(top_k=2, probe="multi_probe", sides="two").memberships(logits)
    assert probing.key is not None
    assert bool((probing.query.sum(-1) == 2).all() and (probing.key.sum(-1) == 1).all())


def test_shapes_of_routers_and_sides() -> None:
    layer = router(routers="kv_head", sides="two", key_heads=3)
    assert layer.projection.shape == (2, 3, HIDDEN, 16)
    assignments = layer(hidden())
    assert assignments.query.shape == assignments.key.shape == (2, 3, TOKENS, 4)
    assert not torch.equal(assignments.query, assignments.key)


def test_query_heads_have_routers_of_their_own() -> None:
    config = FocusConfig(num_groups=4, top_k=2, routers="kv_head", sides="query_heads")
    layer = Router(config, HIDDEN, 2, torch.Generator().manual_seed(0), query_heads=6).eval()
    assert layer.projection.shape == (4, 2, HIDDEN, 16)
    logits = layer.balanced_logits(hidden())
    found = layer.memberships(logits)
    assert found.query.shape == (2, 6, TOKENS, 4)
    assert found.key is not None
    assert found.key.shape == (2, 2, TOKENS, 4)
    for head in range(6):
        own = top_k_groups(logits[:, head % 3, head // 3], 2)  # its place beside its key head
        assert torch.equal(found.query[:, head], own)
    assert layer(hidden()).query.shape == found.query.shape


@pytest.mark.parametrize("query_heads", [None, 0, 5])
def test_query_heads_must_be_told_and_fit(query_heads: int | None) -> None:
    config = FocusConfig(routers="kv_head", sides="query_heads")
    with pytest.raises(ValueError, match=r"^query_heads:"):
        Router(config, HIDDEN, 2, query_heads=query_heads)


@pytest.mark.parametrize("potentials", ["frozen", "lagged"])
@pytest.mark.parametrize("sides", ["two", "query_heads"])
def test_balancing_keys_alone_leaves_queries_as_they_are(sides: str, potentials: str) -> None:
    config = FocusConfig(num_groups=4, routers="kv_head", sides=sides, balanced_sides="keys",
                         potentials=potentials, lag_tokens=64, lag_stride=16)  # fmt: skip
    layer = Router(config, HIDDEN, 2, torch.Generator().manual_seed(0), query_heads=4)
    layer.train()
    soft = layer(hidden(), balance="sinkhorn")
    sizes = soft.key.sum(-2)
    assert torch.allclose(sizes, torch.full_like(sizes, TOKENS / 4), rtol=1e-2)
    assert float((soft.query.detach().sum(-2) - TOKENS / 4).abs().max()) > 1
    layer.eval()
    scores, causal = layer.scores(hidden()), layer.balanced_logits(hidden(), balance="causal")
    assert torch.equal(scores[:, :-1], causal[:, :-1])
    assert not torch.equal(scores[:, -1], causal[:, -1])


def test_half_precision_hidden_states_are_scored_in_float32() -> None:
    assert router().scores(hidden().bfloat16()).dtype == torch.float32
    assert router().scores(hidden().double()).dtype == torch.float64


def test_balance_statistics() -> None:
    even = torch.eye(4, dtype=torch.bool).repeat(8, 1)[None, None]
    assert balance_statistics(even) == {"largest_group": 0.25, "one_plus_cv2": 1.0}
    one = torch.zeros(1, 1, 10, 4, dtype=torch.bool)
    one[..., 0] = True
    assert balance_statistics(one) == {"largest_group": 1.0, "one_plus_cv2": 4.0}
    real = torch.arange(10)[None] < 5
    one[..., 5:, :] = False
    assert balance_statistics(one, real)["largest_group"] == 1.0


@pytest.mark.parametrize("similarity", ["cosine", "dot"])
@pytest.mark.parametrize("sides", ["one", "query_heads"])
def test_prepared_parameters_are_those_of_the_router(similarity: str, sides: str) -> None:
    routers = "layer" if sides == "one" else "kv_head"
    config = FocusConfig(num_groups=4, routers=routers, sides=sides, similarity=similarity)
    own = Router(config, HIDDEN, 2, torch.Generator().manual_seed(0), query_heads=6)
    states = hidden(2, 5).bfloat16()
    projection, centroids = own.projection.detach(), own.centroids.detach()
    wide = states.float()
    if similarity == "cosine":
        wide = torch.nn.functional.layer_norm(wide, wide.shape[-1:])
    routed = torch.einsum("bte,sher->bshtr", wide, projection)
    if similarity == "cosine":
        routed, centroids = (x / x.norm(dim=-1, keepdim=True) for x in (routed, centroids))
    expected = torch.einsum("bshtr,shkr->bshtk", routed, centroids) / config.temperature
    assert torch.allclose(own.scores(states), expected, atol=1e-4)
    with torch.no_grad():
        ready = own.prepared(torch.float32)
        assert torch.equal(own.scores(states, ready), own.scores(states))
        own.centroids.data.add_(torch.arange(4.0)[:, None])  # a change that torch does not count
        assert not torch.equal(own.scores(states, ready), own.scores(states))
