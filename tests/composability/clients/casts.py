"""Half precision."""

from __future__ import annotations

import torch
from torch import Tensor

import focus
from tests.composability.clients.made import (
    CONFIG,
    Found,
    attached,
    gradients,
    ids,
    logits,
    with_potentials,
)
from tests.models import tiny


def autocast_bfloat16(mode: str) -> Found:
    return _autocast(mode, torch.bfloat16)


def autocast_float16(mode: str) -> Found:
    return _autocast(mode, torch.float16)


def _autocast(mode: str, dtype: torch.dtype) -> Found:
    """Logits, and gradients of the routers to scale."""
    model = attached().train() if mode == "soft" else attached()
    plain = torch.cat([logits(model, mode).flatten(), _unit(gradients(model, mode))])
    with torch.autocast("cpu", dtype):
        found = torch.cat([logits(model, mode).flatten(), _unit(gradients(model, mode))])
    if mode == "full":  # against the pretrained model under autocast
        with torch.autocast("cpu", dtype):
            return logits(model, mode), tiny("tiny-llama")(ids()).logits.detach()
    return found.float(), plain


def _unit(gradient: Tensor) -> Tensor:
    return gradient / gradient.abs().max()


def weights_bfloat16(mode: str) -> Found:
    return _cast(mode, torch.bfloat16)


def weights_float16(mode: str) -> Found:
    return _cast(mode, torch.float16)


def _cast(mode: str, dtype: torch.dtype) -> Found:
    after = attached().to(dtype)
    before = with_potentials(focus.attach(tiny("tiny-llama").to(dtype), CONFIG, seed=0))
    assert {p.dtype for p in focus.trainable_parameters(after)} == {torch.float32}
    assert {r.potentials.dtype for r in focus.state.attached(after).routers.values()} == {
        torch.float32
    }
    one, other = logits(after, mode), logits(before, mode)
    assert torch.equal(one, other)
    if mode == "full":
        return one, tiny("tiny-llama").to(dtype)(ids()).logits.detach()
    return one.float(), logits(attached(), mode)
