"""Groups shared out among heads: what each gets, that every path heeds it, and what is refused."""

from __future__ import annotations

import warnings
from pathlib import Path

import pytest
import torch
from torch import Tensor
from transformers import PreTrainedModel

import focus
from focus.allocation import shared_out, weighed
from focus.attention import decode, route
from focus.observed import reach_of, weights_of
from focus.state import attached
from tests.models import build, texts, tiny, token_ids

CONFIG = focus.FocusConfig(num_groups=6, top_k=2, window=16, sinks=2, probe="multi_probe",
                           routers="query_head")  # fmt: skip


@pytest.fixture
def shared() -> PreTrainedModel:
    model = focus.attach(tiny("tiny-llama"), CONFIG, seed=0)
    focus.find_heavy_hitters(model, texts(), 0.05)
    focus.allocate_groups(model, texts())
    return model


def counts(model: PreTrainedModel, top_k: int = 2, length: int = 300) -> Tensor:
    """Groups of each head's queries, (layers, heads); the same for all its tokens."""
    with torch.no_grad(), focus.mode(model, "hard", top_k=top_k):
        model(token_ids(1, length), use_cache=False)
    found = []
    for each in focus.memberships(model).values():
        own = each.query[0, :, :, : CONFIG.num_groups].sum(-1)
        assert torch.equal(own, own[:, :1].expand_as(own))
        found.append(own[:, 0])
    return torch.stack(found)


def test_the_dearest_weight_goes_first_and_the_mean_is_kept() -> None:
    weight = torch.tensor([[9.0, 1.0, 0.5], [4.0, 3.0, 2.0], [0.3, 0.2, 0.1]])
    taken = shared_out(weight, torch.ones(3, 3), may_have_none=True)
    for mean in (1, 2, 3):
        assert (taken <= mean).sum() == 3 * mean
    assert (taken <= 1).sum(-1).tolist() == [1, 2, 0]


def test_what_a_group_costs_counts() -> None:
    weight = torch.tensor([[4.0, 0.1], [3.0, 0.1]])
    taken = shared_out(weight, torch.tensor([[8.0, 1.0], [2.0, 1.0]]), may_have_none=True)
    assert taken[1, 0] < taken[0, 0]  # less weight, and far fewer pairs


def test_a_better_group_brings_the_worse_one_before_it() -> None:
    taken = shared_out(torch.tensor([[0.0, 6.0], [2.0, 2.0]]), torch.ones(2, 2), may_have_none=True)
    assert (taken <= 1).sum(-1).tolist() == [2, 0]


def test_without_heavy_hitters_every_head_keeps_a_group() -> None:
    weight = torch.tensor([[9.0, 8.0, 7.0], [0.0, 0.0, 0.0]])
    taken = shared_out(weight, torch.rand(2, 3) + 0.5, may_have_none=False)
    assert (taken <= 1).sum(-1).tolist() == [1, 1]
    model = focus.attach(tiny("tiny-llama"), CONFIG, seed=0)
    focus.allocate_groups(model, texts())
    assert (counts(model, 1) == 1).all()
    assert counts(model).min() >= 1


def test_weight_and_pairs_are_those_of_the_groups_by_rank() -> None:
    model = focus.attach(tiny("tiny-llama"), CONFIG, seed=0)
    router = attached(model).routers[0]
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(1, 90, 64, generator=generator)
    heads, key_heads = router.centroids.shape[1] * (router.centroids.shape[0] - 1), 2
    query, key = (torch.randn(n, 90, 16, generator=generator) for n in (heads, key_heads))
    held, pairs = weighed(router, hidden, query, key, None)
    ((_, later, weights),) = weights_of(query, key, None)
    distant = (later >= CONFIG.window) & (torch.arange(90) >= CONFIG.sinks)
    weights = weights.flatten(0, 1)
    for top_k in range(1, CONFIG.num_groups + 1):
        own = router(hidden, mask=CONFIG.replace(top_k=top_k))
        keys = own.key.repeat_interleave(heads // key_heads, 1)
        meets = (own.query[0].float() @ keys[0].float().transpose(-1, -2) > 0) & distant
        assert torch.equal(pairs[:, :top_k].sum(-1).long(), meets.sum((1, 2)))
        kept = (weights * meets).sum((1, 2))
        assert torch.allclose(held[:, :top_k].sum(-1).float(), kept, rtol=1e-4, atol=1e-5)


def test_heads_differ_and_pairs_stay_about_the_same(shared: PreTrainedModel) -> None:
    found = counts(shared)
    assert found.min() < 2 < found.max()
    kept = focus.PairCounts.total(focus.pair_counts(shared).values()).distant_density
    attached(shared).config = attached(shared).config.replace(allocated=False)
    counts(shared)
    alike = focus.PairCounts.total(focus.pair_counts(shared).values()).distant_density
    assert abs(kept - alike) < 0.3 * alike


def test_any_mean_can_be_asked_for(shared: PreTrainedModel) -> None:
    assert (counts(shared, CONFIG.num_groups) == CONFIG.num_groups).all()
    assert (counts(shared, 3) >= counts(shared, 2)).all()


def test_the_compiled_routing_agrees(shared: PreTrainedModel, monkeypatch) -> None:
    compiled = counts(shared)
    groups = {i: each.query for i, each in focus.memberships(shared).items()}
    monkeypatch.setattr(route, "computes", lambda *_: False)
    assert torch.equal(counts(shared), compiled)
    for index, each in focus.memberships(shared).items():
        assert (each.query == groups[index]).float().mean() > 0.999


@pytest.mark.parametrize("backend", ["auto", "stripes"])
def test_backends_agree(shared: PreTrainedModel, backend: str) -> None:
    ids = token_ids(2, 200)
    with torch.no_grad():
        with focus.mode(shared, "hard", backend="dense"):
            expected = shared(ids, use_cache=False).logits
        with focus.mode(shared, "hard", backend=backend):
            found = shared(ids, use_cache=False).logits
    assert torch.allclose(found, expected, atol=1e-4)


@pytest.mark.parametrize("compiled", [True, False])
@pytest.mark.parametrize("apart", [True, False])
def test_generation_continues_as_the_whole_pass(
    shared: PreTrainedModel, monkeypatch: pytest.MonkeyPatch, compiled: bool, apart: bool
) -> None:
    if not compiled:
        monkeypatch.setattr(decode.step, "computes", lambda query: False)
    if not apart:
        focus.find_heavy_hitters(shared, texts(), 0.05)  # as many groups for all, beside them
    ids, cache = token_ids(1, 120), focus.FocusCache()
    with torch.no_grad():
        whole = shared(ids, use_cache=False).logits
        shared(ids[:, :70], past_key_values=cache)
        steps = [shared(ids[:, at : at + 1], past_key_values=cache).logits for at in range(70, 120)]
    assert torch.allclose(torch.cat(steps, 1), whole[:, 70:], atol=1e-5)


def test_a_cache_goes_on_under_other_numbers(shared: PreTrainedModel) -> None:
    focus.find_heavy_hitters(shared, texts(), 0.05)  # as many groups for all
    ids, cache, fresh = token_ids(1, 60), focus.FocusCache(), focus.FocusCache()
    with torch.no_grad():
        shared(ids[:, :50], past_key_values=cache)
        focus.allocate_groups(shared, texts())
        went_on = shared(ids[:, 50:], past_key_values=cache).logits
        shared(ids[:, :50], past_key_values=fresh)
        anew = shared(ids[:, 50:], past_key_values=fresh).logits
        focus.find_heavy_hitters(shared, texts(), 0.0)
        with pytest.raises(ValueError, match=r"past_key_values: .* groups = 7 where it is 6 now"):
            shared(ids[:, :1], past_key_values=cache)
    assert not torch.equal(went_on, anew)  # what the first tokens read stays as it was


@pytest.mark.parametrize("routers", ["layer", "key_head", "query_head", "paper"])
@pytest.mark.parametrize("heavy", [0.0, 0.05])
def test_every_kind_of_router_keeps_within_the_cost(routers: str, heavy: float) -> None:
    config = CONFIG.replace(routers=routers, top_k=1, probe="symmetric")
    model = focus.attach(tiny("tiny-llama"), config, seed=0)
    focus.find_heavy_hitters(model, texts(), heavy)
    ids = texts()[1]
    alike = [kept(model, ids, top_k) for top_k in range(1, CONFIG.num_groups + 1)]
    focus.allocate_groups(model, [ids])
    apart = [kept(model, ids, top_k) for top_k in range(1, CONFIG.num_groups + 1)]
    # A little more, since later layers route what masks before them have changed.
    assert all(ours < 1.1 * theirs for ours, theirs in zip(apart, alike, strict=True))
    assert apart[-1] == alike[-1]
    assert apart == sorted(apart)


def kept(model: PreTrainedModel, ids: Tensor, top_k: int) -> int:
    with torch.no_grad(), focus.mode(model, "hard", top_k=top_k, probe="multi_probe"):
        model(ids, use_cache=False)
    return focus.PairCounts.total(focus.pair_counts(model).values()).distant_kept


@pytest.mark.parametrize("name", ["mistral", "opt"])
def test_weights_are_those_of_the_models_own_attention(name: str) -> None:
    model = build(name)
    seen: dict[int, Tensor] = {}
    reach = reach_of(model.get_decoder().layers[0].self_attn)

    def tap(index: int, hidden: Tensor, query: Tensor, key: Tensor) -> None:
        (((_, _, weights)),) = weights_of(query[0], key[0], reach)
        seen[index] = weights.flatten(0, 1)

    ids = token_ids(1, 48)  # more than the window of mistral
    model.set_attn_implementation("eager")
    with torch.no_grad():
        wanted = model(ids, output_attentions=True).attentions
    model.set_attn_implementation("sdpa")
    focus.attach(model, CONFIG, seed=0)
    with torch.no_grad(), focus.mode(model, "hard", top_k=CONFIG.num_groups, tap=tap):
        model(ids, use_cache=False)
    for index, each in seen.items():
        assert torch.allclose(each, wanted[index][0], atol=1e-5)


def test_pairs_beyond_the_models_own_window_do_not_count() -> None:
    model = focus.attach(build("mistral"), CONFIG.replace(top_k=6), seed=0)
    state, found = attached(model), {}
    assert reach_of(state.layers[0].module) == 32

    def tap(index: int, hidden: Tensor, query: Tensor, key: Tensor) -> None:
        found[index] = weighed(state.routers[index], hidden, query[0], key[0], 32)[1].sum()

    with torch.no_grad(), focus.mode(model, "hard", tap=tap):
        model(token_ids(1, 200), use_cache=False)
    counted = focus.PairCounts.total(focus.pair_counts(model).values())
    assert sum(found.values()) == counted.distant_kept


def test_many_pairs_and_empty_groups_stay_in_order() -> None:
    generator = torch.Generator().manual_seed(0)
    for _ in range(50):
        weight = torch.rand(7, 5, generator=generator)
        pairs = torch.rand(7, 5, generator=generator) * 1e12
        pairs[torch.rand(7, 5, generator=generator) < 0.3] = 0
        for may in (True, False):
            taken = shared_out(weight, pairs, may)
            assert torch.isfinite(taken).all()
            assert (taken.diff(dim=1) >= 0).all()
            assert (taken <= 5).all()
    with pytest.raises(ValueError, match="texts: the model's attention holds NaN"):
        shared_out(weight * torch.nan, pairs, True)


def test_a_first_group_that_all_have_says_nothing_of_the_second() -> None:
    taken = shared_out(torch.tensor([[0.0, 6.0], [5.0, 4.0]]), torch.ones(2, 2), False)
    assert taken[0, 1] < taken[1, 1]


def test_they_are_saved(shared: PreTrainedModel, tmp_path: Path) -> None:
    ids = token_ids(1, 200)
    expected = shared(ids).logits
    focus.save_adapter(shared, tmp_path)
    loaded = focus.load_adapter(tiny("tiny-llama"), tmp_path)
    assert attached(loaded).config.allocated
    assert torch.equal(loaded(ids).logits, expected)


def test_new_heavy_hitters_undo_it(shared: PreTrainedModel) -> None:
    focus.find_heavy_hitters(shared, texts(), 0.02)
    assert not attached(shared).config.allocated
    assert (counts(shared) == 2).all()


@pytest.mark.parametrize(
    ("given", "says"),
    [([], "texts: there are none"), ([token_ids(1, 40)], "at least 530 tokens"),
     (["text"], "got str"), ([torch.rand(1, 700)], r"got torch.float32 \(1, 700\)")],
)  # fmt: skip
def test_bad_texts_are_refused_and_nothing_changes(given: list, says: str) -> None:
    model = focus.attach(tiny("tiny-llama"), CONFIG, seed=0)
    with pytest.raises(ValueError, match=says):
        focus.allocate_groups(model, given)
    assert not attached(model).config.allocated
    assert (counts(model) == 2).all()


def test_keys_in_several_groups_are_refused() -> None:
    config = focus.FocusConfig(num_groups=4, top_k=2, window=16)
    model = focus.attach(tiny("tiny-llama"), config, seed=0)
    with pytest.raises(ValueError, match=r"allocated: .*probe='multi_probe'"):
        focus.allocate_groups(model, texts())
    with pytest.raises(ValueError, match="allocated: belongs to the routers"):
        focus.mode(model, "hard", allocated=True)
    with pytest.raises(ValueError, match="allocated: must be true or false"):
        focus.FocusConfig(allocated=1)


def test_of_one_group_everybody_has_it() -> None:
    model = focus.attach(build("llama"), CONFIG.replace(num_groups=1, top_k=1), seed=0)
    focus.allocate_groups(model, [token_ids(1, 700)])
    for router in attached(model).routers.values():
        assert router.taken_at.eq(1).all()


def test_a_training_after_calibration_is_told_once(shared: PreTrainedModel) -> None:
    with focus.mode(shared.eval(), "soft"), warnings.catch_warnings():
        warnings.filterwarnings("error", message="groups were shared out")
        shared(texts()[0])
    shared.train()
    with focus.mode(shared, "soft"):
        with pytest.warns(UserWarning, match="find_heavy_hitters and focus.allocate_groups again"):
            shared(texts()[0])
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            shared(texts()[0])
    fresh = focus.attach(tiny("tiny-llama"), CONFIG.replace(allocated=True), seed=0).train()
    with focus.mode(fresh, "soft"), warnings.catch_warnings():
        warnings.simplefilter("error")
        fresh(texts()[0])
