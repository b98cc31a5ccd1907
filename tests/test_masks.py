"""Masks that users pass: what they say, or a refusal that says why not."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import focus
from focus import FocusConfig
from tests.models import tiny, token_ids

CONFIG = FocusConfig(num_groups=4, top_k=1, window=16, sinks=2)
TOKENS = 60
MODES = ("soft", "hard")


def logits(model: torch.nn.Module, ids: Tensor, mask: Any) -> Tensor:
    with torch.no_grad():
        return model(ids, attention_mask=mask, use_cache=False).logits


def causal() -> Tensor:
    return torch.ones(1, 1, TOKENS, TOKENS, dtype=torch.bool).tril()


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("shape", [(1, TOKENS), (TOKENS,), (4, TOKENS, TOKENS)])
def test_padding_has_a_row_a_sequence(mode: str, shape: tuple[int, ...]) -> None:
    model, mask = focus.attach(tiny("tiny-llama"), CONFIG, seed=0), torch.ones(shape)
    mask[..., :9] = 0
    with focus.mode(model, mode), pytest.raises(ValueError, match=r"^attention_mask: has shape"):
        logits(model, token_ids(4, TOKENS), mask)


@pytest.mark.parametrize("mode", MODES)
def test_one_mask_of_four_dimensions_is_of_every_sequence(mode: str) -> None:
    model, ids = focus.attach(tiny("tiny-llama"), CONFIG, seed=0), token_ids(4, TOKENS)
    mask = causal() & (torch.arange(TOKENS) >= 9)
    padding = (torch.arange(TOKENS) >= 9).long().expand(4, -1)
    with focus.mode(model, mode):
        one, each = (logits(model, ids, m)[:, 9:] for m in (mask, mask.expand(4, -1, -1, -1)))
        assert torch.equal(one, each)
        # Positions start with the padding in one and after it in the other; rope does not care.
        assert torch.allclose(one, logits(model, ids, padding)[:, 9:], atol=2e-5)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("mask", [torch.ones(4, 1, 1, TOKENS, dtype=torch.bool),
                                  torch.zeros(1, 1, 1, TOKENS)])  # fmt: skip
def test_a_mask_that_shows_later_tokens_is_refused(mode: str, mask: Tensor) -> None:
    model, ids = focus.attach(tiny("tiny-llama"), CONFIG, seed=0), token_ids(4, TOKENS)
    with focus.mode(model, mode), pytest.raises(ValueError, match="lets tokens see later ones"):
        logits(model, ids, mask)
    with focus.mode(model, "full"):
        logits(model, ids, mask)


@pytest.mark.parametrize("mode", MODES)
def test_a_mask_without_the_models_own_window_is_refused(mode: str) -> None:
    model = focus.attach(tiny("tiny-mistral", sliding_window=20), CONFIG, seed=0)
    ids, position = token_ids(2, TOKENS), torch.arange(TOKENS)
    banded = causal() & (position[:, None] - position < 20)
    with focus.mode(model, mode):
        assert torch.equal(logits(model, ids, banded), logits(model, ids, None))
        for mask in (causal(), causal() & (position[:, None] - position < 24)):
            with pytest.raises(ValueError, match=r"which is not as the model's own \(20\)"):
                logits(model, ids, mask)
        padded = causal() & (position >= TOKENS - 20)  # whose real tokens the window holds
        padding = (position >= TOKENS - 20).long().expand(2, -1)
        assert torch.allclose(logits(model, ids, padded)[:, -20:],
                              logits(model, ids, padding)[:, -20:], atol=2e-5)  # fmt: skip
        short = ids[:, :20]  # whose window holds everything
        own = torch.ones(1, 1, 20, 20, dtype=torch.bool).tril()
        assert torch.equal(logits(model, short, own), logits(model, short, None))


def test_attentions_that_the_config_asks_for_are_refused() -> None:
    model = tiny("tiny-llama")
    model.set_attn_implementation("eager")
    model.config.output_attentions = True
    focus.attach(model, CONFIG, seed=0)
    with pytest.raises(ValueError, match=r"^output_attentions: Focus forms no attention matrix"):
        logits(model, token_ids(1, TOKENS), None)
    with focus.mode(model, "full"):
        logits(model, token_ids(1, TOKENS), None)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("tokens", [TOKENS - 10, TOKENS + 10])
def test_a_mask_of_another_length_is_refused(mode: str, tokens: int) -> None:
    model, mask = focus.attach(tiny("tiny-llama"), CONFIG, seed=0), torch.ones(2, tokens)
    mask[0, :7] = 0
    with focus.mode(model, mode), pytest.raises(ValueError, match=f"covers {tokens} tokens where"):
        logits(model, token_ids(2, TOKENS), mask)


def test_a_pass_that_was_interrupted_says_nothing_of_the_next_mask() -> None:
    model, ids = focus.attach(tiny("tiny-llama"), CONFIG, seed=0), token_ids(2, 30)
    mask = torch.ones(2, 30, dtype=torch.long)
    mask[0, :7] = 0
    how = {"max_new_tokens": 4, "do_sample": False, "cache_implementation": "static"}

    def stop(*_: Any) -> None:
        raise KeyboardInterrupt

    with focus.mode(model, "full"):
        before = model.generate(ids, attention_mask=mask, **how)
    handle = model.model.layers[1].mlp.register_forward_hook(stop)
    with pytest.raises(KeyboardInterrupt):
        model(ids)
    handle.remove()
    with focus.mode(model, "full"):
        assert torch.equal(model.generate(ids, attention_mask=mask, **how), before)
