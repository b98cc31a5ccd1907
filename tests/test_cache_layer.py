"""A cache that something has changed under: it goes on rightly, or says why not."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable

import accelerate
import pytest
import torch
from torch import nn
from transformers import DynamicCache

import focus
from focus import masks
from focus.routing import Router
from tests.models import tiny, token_ids
from tests.stepping import CONFIG


def routers(model: nn.Module) -> list[Router]:
    return [module for module in model.modules() if isinstance(module, Router)]


@pytest.mark.parametrize("new", [1, 5])
@pytest.mark.parametrize("seen", [4, 40])  # within the window, and beyond
@pytest.mark.parametrize(("before", "after"), [(1, 4), (4, 2)])
def test_a_cache_of_other_sequences_is_refused(
    before: int, after: int, seen: int, new: int
) -> None:
    model, ids = focus.attach(tiny("tiny-llama"), CONFIG, seed=0), token_ids(4, 60)
    cache, same = DynamicCache(), DynamicCache()
    with torch.no_grad():
        for each in (cache, same):
            model(ids[:before, :seen], past_key_values=each)
        told = f"^past_key_values: holds {before} sequences, and the call has {after}"
        with pytest.raises(ValueError, match=told):
            model(ids[:after, seen : seen + new], past_key_values=cache)
        one, other = (model(ids[:before, seen : seen + new], past_key_values=each).logits
                      for each in (cache, same))  # fmt: skip
    assert torch.equal(one, other)


def learn(model: nn.Module) -> None:
    for router in routers(model):
        with torch.no_grad():
            router.centroids += 0.5


def load(model: nn.Module) -> None:
    for router in routers(model):
        router.load_state_dict(router.state_dict())


def put_in(model: nn.Module) -> None:
    for router in routers(model):
        other = {name: tensor.clone() for name, tensor in router.state_dict().items()}
        router.load_state_dict(other, assign=True)


def calibrate(model: nn.Module) -> None:
    focus.find_heavy_hitters(model, [token_ids(1, 900)], share=0.2)


@pytest.mark.parametrize("change", [learn, load, put_in, calibrate])
def test_a_cache_ends_where_its_routers_change(change: Callable[[nn.Module], None]) -> None:
    model, ids = focus.attach(tiny("tiny-llama"), CONFIG, seed=0), token_ids(2, 60)
    focus.find_heavy_hitters(model, [token_ids(1, 900)], share=0.05)
    with torch.no_grad():
        cache = model(ids[:, :40]).past_key_values
        change(model)
        with pytest.raises(ValueError, match="or it has learnt since"):
            model(ids[:, 40:], past_key_values=cache)


def test_an_offloaded_router_is_known_by_what_it_had_learnt() -> None:
    model, ids = focus.attach(tiny("tiny-llama"), CONFIG, seed=0), token_ids(2, 60)
    with torch.no_grad():
        cache = model(ids[:, :40]).past_key_values
        learn(model)
        now = model(ids[:, :40]).past_key_values
        accelerate.cpu_offload(model, execution_device="cpu")
        for each in (model, copy.deepcopy(model)):
            with pytest.raises(ValueError, match="or it has learnt since"):
                each(ids[:, 40:], past_key_values=cache)
        model(ids[:, 40:], past_key_values=now)


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model))])
def test_a_copy_goes_on_from_a_cache_until_it_changes(
    copied: Callable[[nn.Module], nn.Module],
) -> None:
    model, ids = focus.attach(tiny("tiny-llama"), CONFIG, seed=0), token_ids(2, 60)
    load(model)
    twin = copied(model)
    with torch.no_grad():
        cache = model(ids[:, :40]).past_key_values
        own = copy.deepcopy(cache)
        assert torch.equal(twin(ids[:, 40:50], past_key_values=cache).logits,
                           model(ids[:, 40:50], past_key_values=own).logits)  # fmt: skip
        learn(twin)
        with pytest.raises(ValueError, match="or it has learnt since"):
            twin(ids[:, 50:], past_key_values=cache)
        model(ids[:, 50:], past_key_values=own)


def test_a_first_step_that_fails_leaves_the_prompt(monkeypatch: pytest.MonkeyPatch) -> None:
    model, ids = focus.attach(tiny("tiny-llama"), CONFIG, seed=0), token_ids(2, 60)
    with torch.no_grad():
        cache, same = (model(ids[:, :40]).past_key_values for _ in range(2))
        with monkeypatch.context() as broken:
            broken.setattr("focus.attention.past.in_large_pages", lambda _: 1 / 0)
            with pytest.raises(ZeroDivisionError):
                model(ids[:, 40:41], past_key_values=cache)
        assert cache.get_seq_length() == 40
        one, other = (model(ids[:, 40:], past_key_values=each).logits for each in (cache, same))
    assert torch.equal(one, other)


@pytest.mark.parametrize("ngram", [0, 3])
def test_a_cache_that_was_emptied_takes_other_sequences(ngram: int) -> None:
    model, ids = focus.attach(tiny("tiny-llama"), CONFIG.replace(ngram=ngram)), token_ids(2, 60)
    cache = DynamicCache()
    with torch.no_grad():
        model(ids[:1, :40], past_key_values=cache)
        cache.crop(-40)
        assert torch.equal(model(ids, past_key_values=cache).logits, model(ids).logits)


def within_the_window() -> tuple[nn.Module, torch.Tensor]:
    config = CONFIG.replace(window=50)
    return focus.attach(tiny("tiny-llama"), config, seed=0), token_ids(2, 60)


def test_a_step_within_the_window_reads_the_mask_once(monkeypatch: pytest.MonkeyPatch) -> None:
    model, ids = within_the_window()
    asked: list[int] = []
    read = masks.read_mask
    monkeypatch.setattr(masks, "read_mask", lambda *args: (asked.append(1), read(*args))[1])
    with torch.no_grad():
        cache = model(ids[:, :40]).past_key_values
        asked.clear()
        model(ids[:, 40:41], past_key_values=cache)
    assert len(asked) == 1 < model.config.num_hidden_layers


def test_a_router_that_changes_within_the_window_is_told_of_beyond_it() -> None:
    model, ids = within_the_window()
    with torch.no_grad():
        cache = model(ids[:, :40]).past_key_values
        learn(model)
        for at in range(40, 50):  # every pair is kept: no groups, so none of another router
            model(ids[:, at : at + 1], past_key_values=cache)
        with pytest.raises(ValueError, match="or it has learnt since"):
            model(ids[:, 50:51], past_key_values=cache)


def test_another_config_is_told_of_within_the_window() -> None:
    model, ids = within_the_window()
    with torch.no_grad():
        cache = model(ids[:, :40]).past_key_values
        told = pytest.raises(ValueError, match="balance = 'causal' where it is 'softmax' now")
        with focus.mode(model, "hard", balance="softmax"), told:
            model(ids[:, 40:41], past_key_values=cache)
        model(ids[:, 40:41], past_key_values=cache)
        assert cache.get_seq_length() == 41
