"""All weights, from pretrained or random ones."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from experiments import trained, training
from tests.experiments.regimes.test_base import new
from tests.experiments.training import LORA, ROUTED
from tests.models import tiny, token_ids

HOW = {key: value for key, value in LORA.items() if key not in ("rank", "alpha")}


def weights(model: torch.nn.Module) -> torch.Tensor:
    return torch.cat([p.detach().float().flatten() for p in model.parameters()])


@pytest.mark.parametrize("name", ["full", "scratch"])
def test_weights_are_trained_in_float32_and_kept_in_bfloat16(work: Any, name: str) -> None:
    block = {"base": "plain", "seeds": [1], "dtype": "bfloat16", "regime": {**HOW, "name": name}}
    chosen = work(whole=block)
    cell = chosen.cell("whole")
    training.train("whole", 1, chosen)
    found = load_file(trained.weights(cell, 1, chosen) / "model.safetensors")
    assert {tensor.dtype for tensor in found.values()} == {torch.bfloat16}
    built = trained.build(cell, 1, chosen).model
    assert all(torch.equal(p, found[n]) for n, p in built.named_parameters())
    before = new(chosen, "whole", seed=1)
    before.configure_model()
    assert {p.dtype for p in before.parameters()} == {torch.float32}
    moved = (weights(built) - weights(before.model)).abs().max()
    assert 1e-3 < moved < 0.1
    distance = (weights(before.model) - weights(tiny("tiny-llama"))).abs().max()
    assert distance > 0.01 if name == "scratch" else distance == 0


def test_random_weights_are_the_seeds_own(work: Any) -> None:
    chosen = work(drawn={"base": "plain", "seeds": [0, 1], "regime": {**HOW, "name": "scratch"}})
    first, again, other = (new(chosen, "drawn", seed) for seed in (0, 0, 1))
    for regime in (first, again, other):
        regime.configure_model()
    assert torch.equal(weights(first.model), weights(again.model))
    assert not torch.equal(weights(first.model), weights(other.model))


def test_all_weights_under_the_mask_but_the_routers(work: Any, tmp_path: Path) -> None:
    how = {**HOW, "name": "full"}
    chosen = work(masked={"base": "plain", "method": ROUTED, "start": "routed", "regime": how})
    training.train("masked", 0, chosen)
    cell = chosen.cell("masked")
    assert not [n for n in load_file(trained.weights(cell, 0, chosen) / "model.safetensors")
                if "focus_router" in n]  # fmt: skip
    built = trained.build(cell, 0, chosen)
    own, start = (each.model.focus_state.routers[0].state_dict()
                  for each in (built, trained.build(chosen.cell("routed"), 0, chosen)))  # fmt: skip
    assert all(torch.equal(own[name], start[name]) for name in start)
    with torch.no_grad(), built.method.applied(built.model, None) as pairs:
        built.model(input_ids=token_ids(1, 60))
    assert pairs().density < 1
