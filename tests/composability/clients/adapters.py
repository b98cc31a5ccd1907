"""peft."""

from __future__ import annotations

import copy
from typing import Any

import torch

import focus
from focus.adapter import describe
from tests.composability.clients.made import (
    CONFIG,
    Found,
    attached,
    ids,
    logits,
    lora,
    restore,
    with_potentials,
)
from tests.models import tiny


def peft_before(mode: str) -> Found:
    wrapped = lora(tiny("tiny-llama"))
    focus.attach(wrapped, CONFIG, seed=0)
    return _both_adapters(with_potentials(wrapped), mode)


def peft_after(mode: str) -> Found:
    return _both_adapters(lora(attached()), mode)


def _both_adapters(wrapped: Any, mode: str) -> Found:
    """Logits and generated tokens; that both adapters train, and can be merged and detached."""
    merged = copy.deepcopy(wrapped).merge_and_unload()
    plain = logits(merged, mode)
    found = logits(wrapped, mode)
    torch.testing.assert_close(found, plain, rtol=1e-4, atol=1e-4)
    routers = list(focus.trainable_parameters(wrapped))
    lora = [p for name, p in wrapped.named_parameters() if "lora_" in name]
    with focus.mode(wrapped.train(), mode):
        wrapped(ids(), labels=ids(), use_cache=False).loss.backward()
    wrapped.eval()
    assert all(p.grad is not None for p in lora)
    if mode == "soft":
        assert all(p.grad is not None and p.grad.any() for p in routers)
    else:
        with focus.mode(wrapped, mode), focus.mode(merged, mode), torch.no_grad():
            tokens = [m.generate(input_ids=ids(), max_new_tokens=6, do_sample=False)
                      for m in (wrapped, merged)]  # fmt: skip
        assert torch.equal(*tokens)
    focus.detach(wrapped)
    assert not any("focus" in name for name, _ in wrapped.named_modules())
    if mode == "full":
        return found, wrapped(ids()).logits.detach()
    focus.attach(wrapped, CONFIG, seed=0)
    restore(wrapped, merged)
    return logits(wrapped, mode), found


def swapped(mode: str) -> Found:
    """Two LoRA and two Focus adapters on one model, switched between calls."""
    ours = {"first": attached(), "second": attached(CONFIG.replace(num_groups=4, window=8))}
    adapters = {name: describe(model) for name, model in ours.items()}
    one, plain, found = _two_loras(), [], []
    for name, adapter in adapters.items():
        focus.load_adapter(one, adapter, name=name)
    for which in ("default", "second", "default"):
        for name, adapter in adapters.items():
            one.set_adapter(which)
            focus.set_adapter(one, name)
            found.append(logits(one, mode))
            alone = _two_loras()
            alone.set_adapter(which)
            plain.append(logits(focus.load_adapter(alone, adapter), mode))
            with one.disable_adapter():
                found.append(logits(one, mode))
            plain.append(logits(ours[name], mode))
    return torch.stack(found), torch.stack(plain)


def _two_loras() -> Any:
    from peft import LoraConfig

    wrapped = lora(tiny("tiny-llama"))
    wrapped.add_adapter("second", LoraConfig(target_modules=["k_proj", "o_proj"], r=3))
    for name, parameter in wrapped.named_parameters():
        if ".second." in name:
            torch.nn.init.normal_(parameter, std=0.1, generator=torch.Generator().manual_seed(2))
    return wrapped.eval()
