"""Methods under regimes: gradients reach the model's own weights, through the mask."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from peft import LoraConfig, inject_adapter_in_model
from torch import Tensor
from transformers import PreTrainedModel

from experiments import registry
from experiments.methods.base import Method, built
from experiments.settings import Centroids, Lora
from tests.experiments.methods.reference import masked, masks_of, words
from tests.models import tiny

REGIME = Lora(steps=2)
TARGETS = ["q_proj", "k_proj", "v_proj"]
CASES: dict[str, tuple[dict[str, Any], float | None]] = {
    "window": ({"window": 16}, None),
    "window-wider": ({"window": 16, "trained_at": 0.125}, 0.125),
    "ngram": ({"window": 16}, None),
    "position": ({"window": 16, "trained_at": 0.25}, 0.25),
    "token": ({"window": 16, "trained_at": 0.25}, 0.25),
    "focus": ({"window": 16, "num_groups": 4, "routers": "query_head"}, None),
}


def trained(name: str, checkpoint: bool = False) -> tuple[PreTrainedModel, Method]:
    model = tiny("tiny-llama")
    method = built(registry.find("method", name.split("-")[0]), CASES[name][0], seed=0)
    method.install(model)
    method.calibrate(model, [words(1, 200, seed=9)])
    with_lora(model)
    if checkpoint:
        model.gradient_checkpointing_enable({"use_reentrant": False})
        for layer in model.model.layers:
            layer.training = True
    return model, method


def with_lora(model: PreTrainedModel) -> None:
    """Adapters beside q, k and v, whose second matrix is not zero."""
    with torch.random.fork_rng():
        torch.manual_seed(3)
        inject_adapter_in_model(LoraConfig(r=4, target_modules=TARGETS), model)
        for name, parameter in model.named_parameters():
            parameter.requires_grad_("lora_" in name)
            if "lora_B" in name:
                torch.nn.init.normal_(parameter, std=0.2)


def loss_of(model: PreTrainedModel, ids: Tensor) -> Tensor:
    logits = model(ids, use_cache=False).logits[:, :-1]
    return torch.nn.functional.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())


def grads_of(model: PreTrainedModel) -> dict[str, Tensor]:
    return {n: p.grad for n, p in model.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("name", CASES)
def test_lora_is_trained_through_the_mask(name: str) -> None:
    model, method = trained(name)
    ids = words(1, 200)
    with method.training(model, 0, REGIME):
        loss = loss_of(model, ids)
        with method.applied(model, CASES[name][1]), torch.no_grad():
            assert torch.equal(loss_of(model, ids), loss)
            masks = masks_of(model, method, CASES[name][1], ids)
    loss.backward()
    found = grads_of(model)
    assert found
    assert all(name.split(".")[-3].startswith("lora_") for name in found)
    with masked(lambda layer, query, key: masks[layer]) as reference:
        with_lora(reference)
        loss_of(reference, ids).backward()
        wanted = grads_of(reference)
    assert set(found) == set(wanted)
    for each, grad in wanted.items():
        torch.testing.assert_close(found[each], grad, atol=1e-5, rtol=1e-3)
        assert grad.abs().max() > 0


@pytest.mark.parametrize("name", CASES)
def test_activations_that_are_computed_again_meet_the_same_mask(name: str) -> None:
    """After the context has been left, as Lightning's backward pass does."""
    ids, found = words(1, 200), []
    for checkpoint in (False, True):
        model, method = trained(name, checkpoint)
        with method.training(model, 0, REGIME):
            loss = loss_of(model, ids)
        loss.backward()
        found.append(grads_of(model))
    assert set(found[0]) == set(found[1])
    for name_of, grad in found[0].items():
        torch.testing.assert_close(found[1][name_of], grad, atol=1e-6, rtol=1e-5)


def test_full_attention_trains_as_if_no_routers_were_there() -> None:
    ids, losses = words(1, 200), []
    for routed in (False, True):
        model = tiny("tiny-llama")
        if routed:
            built(registry.find("method", "focus"), {"window": 16}, seed=0).install(model)
        method = built(registry.find("method", "full"), {}, seed=0)
        method.install(model)
        with_lora(model)
        with method.training(model, 0, REGIME):
            losses.append(loss_of(model, ids))
        losses[-1].backward()
        assert grads_of(model)
    assert torch.equal(*losses)


def test_routers_are_trained_by_the_soft_gate() -> None:
    model = tiny("tiny-llama")
    fields = {"num_groups": 4, "window": 16, "temperature": 0.1}
    method = built(registry.find("method", "focus"), fields, seed=0)
    method.install(model)
    regime = Centroids(steps=5, temperature_start=0.4, hard_from=0.5, hard_top_ks=(1, 2))
    seen = []
    for step in range(5):
        with method.training(model.train(), step, regime):
            mode, config = model.focus_state.runs(model)
            seen.append((mode.name, round(config.temperature, 3), config.gate, config.top_k))
            loss_of(model, words(1, 100)).backward()
    hard = "straight_through"
    assert seen == [("soft", 0.4, "log", 1), ("soft", 0.283, "log", 2), ("soft", 0.2, "log", 1),
                    ("soft", 0.141, hard, 2), ("soft", 0.1, hard, 1)]  # fmt: skip
    assert all("focus_router" in name for name in grads_of(model))
