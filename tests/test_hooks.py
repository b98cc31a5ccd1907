"""What hooks say of a pass: a loss that teaches nothing, a trace, a pass that fails."""

from __future__ import annotations

import copy

import pytest
import torch
from peft import LoraConfig, get_peft_model
from torch import nn

import focus
from focus import FocusConfig
from tests.models import tiny, token_ids

CONFIG = FocusConfig(num_groups=4, top_k=1, window=16, sinks=2)
IDS = token_ids(1, 60)


@pytest.fixture
def model() -> nn.Module:
    return focus.attach(tiny("tiny-llama"), CONFIG, seed=0)


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.filterwarnings("ignore:the model is in training mode")
def test_a_loss_of_hard_mode_says_why_nothing_learns(model: nn.Module, training: bool) -> None:
    loss = model.train(training)(IDS, labels=IDS).loss
    for each in (loss, loss / 4):  # as Trainer divides it
        with pytest.raises(RuntimeError, match=r'^loss: .*with focus\.mode\(model, "soft"\)'):
            each.backward()
    loss = model.train()(IDS, labels=IDS).loss
    loss /= 4  # in place, as Trainer does, too
    with pytest.raises(RuntimeError, match=r'^loss: .*with focus\.mode\(model, "soft"\)'):
        loss.backward()
    copy.deepcopy(model.eval()(IDS, labels=IDS))
    with focus.mode(model.train(), "soft"):
        model(IDS, labels=IDS).loss.backward()


def test_a_loss_that_layers_cut_off_says_so(model: nn.Module) -> None:
    model.model.norm.register_forward_hook(lambda module, args, output: output.detach())
    with focus.mode(model.train(), "soft"):
        loss = model(IDS, labels=IDS).loss
        with pytest.raises(RuntimeError, match=r"^loss: no gradient leads from it to the routers"):
            loss.backward()


def test_a_loss_is_as_ever_where_nobody_can_learn_or_something_does(model: nn.Module) -> None:
    with torch.no_grad():
        assert not model(IDS, labels=IDS).loss.requires_grad
    with focus.mode(model, "full"):
        assert not model(IDS, labels=IDS).loss.requires_grad
    model.lm_head.weight.requires_grad_()
    model(IDS, labels=IDS).loss.backward()
    assert model.lm_head.weight.grad.any()
    wrapped = focus.attach(tiny("tiny-llama"), CONFIG, seed=0)
    wrapped = get_peft_model(wrapped, LoraConfig(target_modules=["q_proj"])).train()
    wrapped(IDS, labels=IDS).loss.backward()
    assert all(p.grad.any() for name, p in wrapped.named_parameters() if "lora_B" in name)
    assert not focus.detach(model)._forward_hooks


@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning", "ignore:.*deprecated")
def test_a_trace_is_refused_but_of_the_pretrained_model(model: nn.Module) -> None:
    model.config.use_cache = False
    for mode in ("hard", "soft"):
        with focus.mode(model, mode), pytest.raises(ValueError, match=r"^torch\.jit\.trace: "):
            torch.jit.trace(model, (IDS[:, :10],), strict=False)
    with torch.no_grad(), focus.mode(model, "full"):
        traced = torch.jit.trace(model, (IDS[:, :10],), strict=False)
        assert torch.equal(traced(IDS)["logits"], model(IDS).logits)


def test_a_pass_that_failed_is_not_counted(model: nn.Module) -> None:
    model(IDS)
    before = focus.density(model)
    handle = model.model.layers[1].register_forward_pre_hook(lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        model(token_ids(1, 90))
    assert focus.density(model) == before
    handle.remove()
    model(token_ids(1, 90))
    assert focus.density(model) != before


@pytest.mark.parametrize("batch", [1, 2])
def test_frozen_output_embeddings_get_no_slice(batch: int) -> None:
    def seen(model: nn.Module) -> list[tuple[int, ...]]:
        strides: list[tuple[int, ...]] = []
        handle = model.lm_head.register_forward_pre_hook(lambda _, x: strides.append(x[0].stride()))
        for kept in (1, 3):
            model(token_ids(batch, 60), logits_to_keep=kept)
        handle.remove()
        return strides

    model = tiny("tiny-llama")
    width = model.config.hidden_size
    assert seen(model) == [(60 * width, width, 1)] * 2
    focus.attach(model, CONFIG, seed=0)
    assert seen(model) == [(width, width, 1), (3 * width, width, 1)]
    focus.detach(model)
    assert seen(model) == [(60 * width, width, 1)] * 2
