import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from focus import FocusConfig, Router
from focus.balance import sinkhorn_potentials
from focus.groups import assignments_of, memberships_of, top_k_groups

HIDDEN, TOKENS = 24, 96


def router(seed: int = 0, key_heads: int = 2, **changes: object) -> Router:
    config = FocusConfig(**{"num_groups": 4, "top_k": 1, **changes})  # type: ignore[arg-type]
    return Router(config, HIDDEN, key_heads, 3 * key_heads,
                  torch.Generator().manual_seed(seed)).eval()  # fmt: skip


def hidden(batch: int = 2, tokens: int = TOKENS, seed: int = 1) -> torch.Tensor:
    return torch.randn(batch, tokens, HIDDEN, generator=torch.Generator().manual_seed(seed))


def sinkhorn(scores: torch.Tensor, iterations: int) -> torch.Tensor:
    return scores + sinkhorn_potentials(scores, 1.0, iterations).unsqueeze(-2)


def test_gpt2_has_the_papers_148224_parameters() -> None:
    config = FocusConfig(num_groups=4, routing_dim=16)
    layer = Router(config, 768, 12, 12)
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
        both = layer(states, real, balance=balance)
        assert both.isfinite().all()
        alone = layer(states[:1, 30:], balance=balance)
        assert torch.allclose(both[:1, ..., 30:, :], alone, atol=1e-5)
        alone = layer(states[1:, :-20], balance=balance)
        assert torch.allclose(both[1:, ..., :-20, :], alone, atol=1e-5)


def test_padding_moves_no_gradient() -> None:
    states, real = hidden(1, 60), torch.zeros(1, 100, dtype=torch.bool)
    real[:, :60] = True
    padded = torch.cat([states, torch.full((1, 40, HIDDEN), 3.0)], 1)
    one, other = router(routers="query_head"), router(routers="query_head")
    weight = torch.randn(4, generator=torch.Generator().manual_seed(2))
    (one(states, balance="sinkhorn").softmax(-1) @ weight).sum().backward()
    (other(padded, real, balance="sinkhorn").softmax(-1)[..., :60, :] @ weight).sum().backward()
    for own, theirs in zip(one.parameters(), other.parameters(), strict=True):
        assert own.grad is not None
        assert own.grad.abs().max() > 0
        assert torch.allclose(own.grad, theirs.grad, atol=1e-5)


def test_a_sequence_of_padding_alone_leaves_the_others_potentials() -> None:
    states = hidden()
    real = torch.ones(2, TOKENS, dtype=torch.bool)
    real[1] = False
    both, alone = router(), router()
    found = both(states, real, balance="sinkhorn", learn=True)
    assert found.isfinite().all()
    alone(states[:1], balance="sinkhorn", learn=True)
    assert torch.allclose(both.potentials, alone.potentials, atol=1e-6)
    found.sum().backward()
    assert all(p.grad.isfinite().all() for p in both.parameters())


def test_frozen_potentials_equal_sinkhorns_on_the_batch_they_came_from() -> None:
    layer, states = router(routers="key_head"), hidden(batch=1)
    learnt = layer(states, balance="sinkhorn", learn=True)
    assert int(layer.batches) == 1
    assert torch.allclose(layer(states), learnt, atol=1e-5)
    assert torch.allclose(learnt, layer(states, balance="sinkhorn"), atol=1e-5)


def test_potentials_are_learnt_only_when_asked() -> None:
    layer = router().train()
    layer(hidden())
    assert int(layer.batches) == 0
    layer(hidden(), balance="softmax", learn=True)
    assert int(layer.batches) == 1
    assert bool(layer.potentials.any())


@pytest.mark.parametrize("first", [True, False])
def test_a_batch_that_is_not_finite_leaves_the_potentials(first: bool) -> None:
    own, batch = router(), hidden(1, 40)
    if not first:
        own(batch, balance="sinkhorn", learn=True)
    before, batches = own.potentials.clone(), int(own.batches)
    broken = batch.clone()
    broken[0, 3] = torch.nan
    own(broken, balance="sinkhorn", learn=True)
    assert torch.equal(own.potentials, before)
    assert int(own.batches) == batches
    own(batch, balance="sinkhorn", learn=True)
    assert int(own.batches) == batches + 1
    assert own.potentials.abs().max() > 0


def test_potentials_mean_the_same_at_every_temperature() -> None:
    layer, states = router(), hidden()
    layer(states, balance="sinkhorn", learn=True)
    one, other = layer(states), layer(states, temperature=0.7)
    assert torch.allclose(0.1 * one, 0.7 * other, atol=1e-6)


@given(st.integers(1, TOKENS - 1), st.integers(0, 10_000))
@settings(max_examples=15, deadline=None)
def test_no_future_token_changes_a_causal_assignment(cut: int, seed: int) -> None:
    layer = router()
    layer.potentials.normal_(generator=torch.Generator().manual_seed(seed))
    states = hidden(1, seed=seed)
    other = torch.cat([states[:, :cut], 5 * hidden(1, seed=seed + 1)[:, cut:]], 1)
    assert torch.equal(layer(states)[..., :cut, :], layer(other)[..., :cut, :])


def test_sequence_wide_sinkhorn_does_see_the_future() -> None:
    layer, states = router(balance="sinkhorn"), hidden(1)
    other = torch.cat([states[:, :48], 5 * hidden(1, seed=9)[:, 48:]], 1)
    assert not torch.allclose(layer(states)[..., :48, :], layer(other)[..., :48, :], atol=1e-3)


def test_the_papers_scores_are_its_plain_product() -> None:
    layer, states = router(routers="paper"), hidden()
    plain = states @ layer.projection[0, 0] @ layer.centroids[0, 0].T
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


def test_memberships_by_probe() -> None:
    symmetric = memberships_of(router()(hidden()), FocusConfig(num_groups=4, top_k=2))
    assert symmetric.key is None
    assert symmetric.of_keys is symmetric.query
    assert bool((symmetric.query.sum(-1) == 2).all())
    config = FocusConfig(num_groups=4, top_k=2, probe="multi_probe", routers="key_head")
    probing = memberships_of(router(routers="key_head")(hidden()), config)
    assert probing.key is not None
    assert bool((probing.query.sum(-1) == 2).all() and (probing.key.sum(-1) == 1).all())


def test_shapes_of_routers_and_sides() -> None:
    layer = router(routers="key_head", key_heads=3)
    assert layer.projection.shape == (2, 3, HIDDEN, 16)
    assignments = assignments_of(layer(hidden()))
    assert assignments.query.shape == assignments.key.shape == (2, 3, TOKENS, 4)
    assert not torch.equal(assignments.query, assignments.key)


def test_query_heads_have_routers_of_their_own() -> None:
    config = FocusConfig(num_groups=4, top_k=2, routers="query_head")
    layer = Router(config, HIDDEN, 2, 6, torch.Generator().manual_seed(0)).eval()
    assert layer.projection.shape == (4, 2, HIDDEN, 16)
    logits = layer(hidden())
    found = memberships_of(logits, config)
    assert found.query.shape == (2, 6, TOKENS, 4)
    assert found.key is not None
    assert found.key.shape == (2, 2, TOKENS, 4)
    for head in range(6):
        own = top_k_groups(logits[:, head % 3, head // 3], 2)  # its place beside its key head
        assert torch.equal(found.query[:, head], own)
    assert assignments_of(logits).query.shape == found.query.shape


def test_query_heads_of_their_own_are_not_balanced() -> None:
    config = FocusConfig(num_groups=4, routers="query_head")
    layer = Router(config, HIDDEN, 2, 4, torch.Generator().manual_seed(0))
    soft = assignments_of(layer(hidden(), balance="sinkhorn", learn=True))
    sizes = soft.key.sum(-2)
    assert torch.allclose(sizes, torch.full_like(sizes, TOKENS / 4), rtol=1e-2)
    assert float((soft.query.detach().sum(-2) - TOKENS / 4).abs().max()) > 1
    scores, causal = layer.scores(hidden()) / 0.1, layer(hidden(), balance="causal")
    assert torch.allclose(scores[:, :-1], causal[:, :-1])
    assert not torch.allclose(scores[:, -1], causal[:, -1])


def test_scores_are_float32_or_wider_under_any_cast() -> None:
    assert router().scores(hidden().bfloat16()).dtype == torch.float32
    assert router().scores(hidden().double()).dtype == torch.float64
    plain = router()(hidden())
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(router()(hidden()), plain)
    assert torch.equal(router().bfloat16()(hidden()), plain)


def test_more_groups_than_tokens_cannot_be_balanced() -> None:
    with pytest.raises(ValueError, match=r"^num_groups:.* over 8 tokens; "):
        router(num_groups=32, balance="sinkhorn")(hidden(tokens=8))


def test_a_short_text_of_a_long_batch_is_balanced_as_evenly_as_it_can_be() -> None:
    real = torch.ones(2, 40, dtype=torch.bool)
    real[1, 5:] = False
    found = router(num_groups=8, balance="sinkhorn", sinkhorn_iterations=200)(hidden(2, 40), real)
    shares = found.softmax(-1)[1, ..., :5, :].sum(-2)
    torch.testing.assert_close(shares, torch.full_like(shares, 5 / 8), rtol=0.05, atol=0)
    with pytest.raises(ValueError, match=r"^num_groups:.* over 8 tokens, padding among them; "):
        router(num_groups=9, balance="sinkhorn")(hidden(2, 8), real[:, :8])


@pytest.mark.parametrize("routers", ["layer", "paper", "query_head"])
def test_weights_are_those_of_the_router(routers: str) -> None:
    own = Router(FocusConfig(num_groups=4, routers=routers), HIDDEN, 2, 6)  # type: ignore[arg-type]
    states = hidden(2, 5).bfloat16()
    projection, centroids = own.projection.detach(), own.centroids.detach()
    wide = states.float()
    if routers != "paper":
        wide = torch.nn.functional.layer_norm(wide, wide.shape[-1:])
    routed = torch.einsum("bte,sher->bshtr", wide, projection)
    if routers != "paper":
        routed, centroids = (x / x.norm(dim=-1, keepdim=True) for x in (routed, centroids))
    expected = torch.einsum("bshtr,shkr->bshtk", routed, centroids)
    assert torch.allclose(own.scores(states), expected, atol=1e-5)
    with torch.no_grad():
        ready = own.weights().kept()
        assert torch.equal(own.scores(states, ready), own.scores(states))
        own.centroids.data = own.centroids + torch.arange(4.0)[:, None]
        assert not torch.equal(own.scores(states, ready), own.scores(states))


def test_a_state_of_a_model_that_was_cast_keeps_routers_exact() -> None:
    one, other = router(), router(seed=5, heavy_hitters=0.02)
    narrow = {name: tensor.bfloat16() if tensor.is_floating_point() else tensor
              for name, tensor in one.state_dict().items()}  # fmt: skip
    one.load_state_dict(narrow, assign=True)
    assert {tensor.dtype for tensor in one.state_dict().values()} == {torch.float32, torch.int64}
    assert torch.equal(one.centroids, narrow["centroids"].float())
    for strict in (True, False):
        with pytest.raises(RuntimeError, match=r"attach with heavy_hitters=0.02, allocated=False"):
            one.load_state_dict(other.state_dict(), strict=strict)
        with pytest.raises(RuntimeError, match=r"attach with heavy_hitters=0.0, allocated=False"):
            other.load_state_dict(one.state_dict(), strict=strict)
    other.load_state_dict({}, strict=False)  # of the model alone
    other.load_state_dict(dict(other.named_parameters()), strict=False)  # an average's, say
