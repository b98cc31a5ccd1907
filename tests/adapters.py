"""Adapters to save, load and refuse."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

import focus
from focus import FocusConfig
from focus.state import attached
from tests.models import build, token_ids

CONFIG = FocusConfig(num_groups=4, top_k=2, window=16, routers="key_head")
OTHER = FocusConfig(num_groups=6, top_k=1, window=8, routers="query_head", probe="multi_probe")


def trained(name: str = "llama", config: FocusConfig = CONFIG, seed: int = 3) -> PreTrainedModel:
    """An attached model whose routers have potentials, as after training."""
    model = focus.attach(build(name), config, seed=seed)
    with torch.no_grad(), torch.random.fork_rng():
        torch.manual_seed(seed)
        for router in attached(model).routers.values():
            router.potentials.normal_(std=0.05)
    return model.eval()


def logits(model: nn.Module) -> Tensor:
    with torch.no_grad():
        return model(token_ids(1, 60), use_cache=False).logits


def refused(source: Any, match: str, model: PreTrainedModel | None = None, **options: Any) -> None:
    model = build("llama") if model is None else model
    before = {name: p.requires_grad for name, p in model.named_parameters()}
    config = copy.deepcopy(model.config.to_dict())
    with pytest.raises(ValueError, match=match):
        focus.load_adapter(model, source, **options)
    assert "focus_state" not in model.__dict__
    assert {name: p.requires_grad for name, p in model.named_parameters()} == before
    assert model.config.to_dict() == config
    assert model.config._attn_implementation == "sdpa"
