"""Heavy hitters: what they are, how they are found, and that every path heeds them."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor
from transformers import PreTrainedModel

import focus
from focus.heavy import received, threshold
from focus.named import state_of
from focus.state import attached
from tests.models import texts, tiny, token_ids

CONFIG = focus.FocusConfig(num_groups=4, window=16, sinks=2)
SHARE = 0.05


@pytest.fixture
def found() -> PreTrainedModel:
    model = focus.attach(tiny("tiny-llama"), CONFIG, seed=0)
    focus.find_heavy_hitters(model, texts(), SHARE)
    return model


def heavy(model: PreTrainedModel) -> dict[int, Tensor]:
    """Of the last pass: layer index -> (B, Hr, T)."""
    return {index: each.key[..., -1] for index, each in focus.memberships(model).items()}


def test_received_weight_is_that_of_the_queries_beyond_the_window() -> None:
    generator = torch.Generator().manual_seed(0)
    query, key = (torch.randn(n, 700, 8, generator=generator) for n in (4, 2))
    window, scale, last = 16, 8**-0.5, 690
    causal = torch.ones(700, 700).tril().bool()
    logits = query.unflatten(0, (2, 2)) @ key[:, None].transpose(-1, -2) * scale
    weights = logits.masked_fill(~causal, -torch.inf).softmax(-1).mean(1)
    for place in (0, 5, 511, 512, last - window):
        later = torch.arange(place + window, 700)
        expected = weights[:, later, place].sum(-1) / (1 / (later + 1)).sum()
        found = received(query, key, window)[:, place]
        assert torch.allclose(found, expected, rtol=1e-4)


def test_a_models_own_window_bounds_received_weight() -> None:
    generator = torch.Generator().manual_seed(0)
    query, key = (torch.randn(2, 700, 8, generator=generator) for _ in range(2))
    window, reach = 16, 64
    later = torch.arange(700)[:, None] - torch.arange(700)
    seen = (later >= 0) & (later < reach)
    logits = query @ key.transpose(-1, -2) * 8**-0.5
    weights = logits.masked_fill(~seen, -torch.inf).softmax(-1)
    distant = seen & (later >= window)
    expected = weights.masked_fill(~distant, 0).sum(1) / (distant / seen.sum(1)[:, None]).sum(0)
    found = received(query, key, window, reach)
    assert torch.allclose(found[:, :600], expected[:, :600], rtol=1e-4)


def test_a_share_of_the_tokens_passes_and_they_weigh_more(found: PreTrainedModel) -> None:
    ids = torch.cat([token_ids(1, 560), token_ids(1, 560)])
    with torch.no_grad():
        found(ids, use_cache=False)
    for flags in heavy(found).values():
        assert SHARE / 3 < flags.float().mean() < 3 * SHARE

    seen: dict[int, Tensor] = {}
    keep = lambda index, hidden, query, key: seen.update(  # noqa: E731
        {index: received(query[0], key[0], CONFIG.window)}
    )
    with torch.no_grad(), focus.mode(found, "hard", top_k=4, tap=keep):
        found(ids[:1], use_cache=False)
    for index, flags in heavy(found).items():
        weight, chosen = seen[index].mean(0)[2:400], flags[0, 0, 2:400]
        assert weight[chosen].mean() > weight[~chosen].mean()


def test_a_default_dtype_or_device_of_the_users_changes_nothing(found: PreTrainedModel) -> None:
    other = focus.attach(tiny("tiny-llama"), found.focus_state.config.replace(heavy_hitters=0.0),
                         seed=0)  # fmt: skip
    given = texts()
    torch.set_default_dtype(torch.float64)
    try:
        with torch.device("meta"):
            focus.find_heavy_hitters(other, given, SHARE)
    finally:
        torch.set_default_dtype(torch.float32)
    for index, router in found.focus_state.routers.items():
        bias = other.focus_state.routers[index].heavy_bias
        torch.testing.assert_close(bias, router.heavy_bias)


def test_no_score_lies_at_the_threshold() -> None:
    """In a first layer every occurrence of a token has one score, which a quantile would be."""
    scores = torch.tensor([1.0, 2.0, 3.0, 4.0]).repeat_interleave(25)
    assert threshold(scores, 0.26) == 3.5
    assert threshold(scores, 0.4) == 2.5
    assert threshold(scores, 0.01) == 3.5
    close = torch.cat([torch.linspace(0, 1, 98), torch.tensor([1.5, 1.5 + 1e-6])])
    assert threshold(close, 0.01) == 1.25
    many = torch.randn(65536, generator=torch.Generator().manual_seed(0))
    for share in (0.02, 0.1, 0.5):
        assert abs(float((many > threshold(many, share)).float().mean()) - share) < 0.01


def test_a_text_word_by_word_has_those_of_the_whole() -> None:
    for seed in range(3):
        model = focus.attach(tiny("tiny-llama"), CONFIG, seed=seed)
        few = [each % 64 for each in texts()]
        focus.find_heavy_hitters(model, few, SHARE)
        ids = token_ids(1, 160, seed=seed) % 64
        with torch.no_grad():
            whole = model(ids, use_cache=False).logits[:, 90:]
            cache = model(ids[:, :90]).past_key_values
            steps = [
                model(token, past_key_values=cache).logits for token in ids[:, 90:].split(1, 1)
            ]
        assert torch.allclose(torch.cat(steps, 1), whole, atol=1e-4)


def test_every_query_sees_them_and_nobody_is_seen_twice(found: PreTrainedModel) -> None:
    ids = token_ids(1, 300)
    with torch.no_grad():
        found(ids, use_cache=False)
    for each in focus.memberships(found).values():
        assert each.query[..., -1].all()
        assert (each.of_keys.sum(-1) == 1).all()
        assert (each.query.sum(-1) == CONFIG.top_k + 1).all()


@pytest.mark.parametrize("gate", ["log", "straight_through"])
def test_training_gates_count_them_in_full(gate: str) -> None:
    model = focus.attach(tiny("tiny-llama"), CONFIG.replace(gate=gate, probe="multi_probe"), seed=0)
    ids = token_ids(1, 120)
    with torch.no_grad(), focus.mode(model, "full"):
        full = model(ids, use_cache=False).logits
    with torch.no_grad(), focus.mode(model, "soft"):
        without = model(ids, use_cache=False).logits
    focus.find_heavy_hitters(model, texts(), 0.5)
    for router in model.focus_state.routers.values():
        router.heavy_bias.fill_(1e6)  # every token
    with torch.no_grad(), focus.mode(model, "soft"):
        found = model(ids, use_cache=False).logits
    assert torch.allclose(found, full, atol=1e-5)
    assert not torch.allclose(without, full, atol=1e-3)


def test_routers_learn_beside_them(found: PreTrainedModel) -> None:
    ids = token_ids(1, 120)
    with focus.mode(found.train(), "soft", gate="straight_through"):
        out = found(ids, labels=ids, use_cache=False)
    out.loss.backward()
    for parameter in focus.trainable_parameters(found):
        assert parameter.grad.abs().sum() > 0


def test_saved_and_loaded_with_the_adapter(found: PreTrainedModel, tmp_path: Path) -> None:
    ids = token_ids(1, 200)
    focus.save_adapter(found, tmp_path)
    other = focus.load_adapter(tiny("tiny-llama"), tmp_path)
    with torch.no_grad():
        assert torch.equal(found(ids).logits, other(ids).logits)
    assert attached(other).config.heavy_hitters == SHARE


def test_none_again(found: PreTrainedModel) -> None:
    ids, plain = token_ids(1, 200), focus.attach(tiny("tiny-llama"), CONFIG, seed=0)
    focus.find_heavy_hitters(found, [], 0)
    with torch.no_grad():
        assert torch.equal(found(ids).logits, plain(ids).logits)
    assert set(state_of(attached(found).routers)) == set(state_of(attached(plain).routers))


def test_routers_alone_have_none() -> None:
    model = focus.attach(tiny("tiny-llama"), CONFIG.replace(heavy_hitters=0.1), seed=0)
    with torch.no_grad():
        model(token_ids(1, 100))
    assert not any(flags.any() for flags in heavy(model).values())


@pytest.mark.parametrize(
    ("given", "share", "word"),
    [([], 0.1, "none"), ([token_ids(1, 100)], 0.1, "at least"), (texts(), 0.7, "heavy_hitters"),
     (texts(), -1, "heavy_hitters"), (texts(), "0.02", "heavy_hitters"),
     (None, 0.1, "got NoneType"), ([token_ids(1, 700).bool()], 0.1, "got torch.bool")],
)  # fmt: skip
def test_refusals_leave_the_model_as_it_was(given: list[Tensor], share: float, word: str) -> None:
    model = focus.attach(tiny("tiny-llama"), CONFIG, seed=0)
    with pytest.raises(ValueError, match=word):
        focus.find_heavy_hitters(model, given, share)
    assert attached(model).config == CONFIG
    with pytest.raises(ValueError, match="heavy_hitters: belongs to the routers"):
        focus.mode(model, "hard", heavy_hitters=0.1)
