"""Devices that are neither a CPU nor CUDA, rehearsed on a CPU: Apple's have no float64."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from transformers import LlamaConfig, LlamaForCausalLM

import focus
from focus.attention import route
from focus.attention.checks import Inputs
from focus.attention.native import call, step
from focus.attention.train import kernel
from focus.scores import RouterWeights


class NoFloat64(TorchDispatchMode):
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        for each in tree_leaves(made):
            assert not isinstance(each, torch.Tensor) or each.dtype != torch.float64, func
        return made


@pytest.fixture
def elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """Has every choice fall as it would on a device of no compiled kernels."""
    for each in (Inputs, RouterWeights):
        monkeypatch.setattr(each, "on_cpu", property(lambda x: False))
    for module in (call, route, step, kernel):
        monkeypatch.setattr(module, "library", lambda: None)


@pytest.mark.usefixtures("elsewhere")
@pytest.mark.parametrize(
    "config",
    [
        focus.FocusConfig.recipe(window=8, heavy_hitters=0.1),
        focus.FocusConfig(window=8, top_k=2),
        focus.FocusConfig.paper(num_groups=4, top_k=2, window=8, balance="causal"),
    ],
    ids=["recipe", "two groups", "paper"],
)
def test_nothing_needs_float64(config: focus.FocusConfig) -> None:
    torch.manual_seed(0)
    sizes = {"vocab_size": 64, "hidden_size": 64, "intermediate_size": 64, "num_attention_heads": 4,
             "num_key_value_heads": 2, "num_hidden_layers": 2}  # fmt: skip
    model = LlamaForCausalLM(LlamaConfig(**sizes))
    ids = torch.randint(0, 64, (2, 50))
    real = torch.ones_like(ids)
    real[0, :7] = 0
    with NoFloat64():
        focus.attach(model, config)
        with focus.mode(model, "soft"):
            model(ids, attention_mask=real, labels=ids).loss.backward()
        model.eval()
        with focus.mode(model, "hard"):
            model(ids, attention_mask=real)
            kept = focus.density(model)
            model.generate(ids, attention_mask=real, max_new_tokens=5, do_sample=False)
    assert all(0 < share < 1 for share in kept.values())
