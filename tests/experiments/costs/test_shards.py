"""The 70B model without weights, spread as the regimes spread it, in a group of fake processes."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.testing._internal.distributed.fake_pg import FakeStore

import focus
from experiments.costs import shapes
from experiments.costs.estimate import Sizes
from experiments.regimes.centroids import routers
from experiments.regimes.tensors import layers

RANKS = 8
Shards = dict[str, tuple[int, int]]  # numbers of a process, and of the whole parameter


def shards(rank: int) -> Shards:
    """What a process holds of every parameter, units as in Regime.configure_model."""
    dist.init_process_group("fake", rank=rank, world_size=RANKS, store=FakeStore())
    try:
        mesh = init_device_mesh("cpu", (RANKS,))
        shape = shapes.config("llama-2-70b")
        model = shapes.build(shape, torch.bfloat16, focus.FocusConfig.recipe())
        for unit in (*routers(model), *layers(model), model):
            fully_shard(unit, mesh=mesh)
        return {name: (p.to_local().numel(), p.numel()) for name, p in model.named_parameters()}
    finally:
        dist.destroy_process_group()


@pytest.fixture(scope="module")
def ranks() -> list[Shards]:
    return [shards(rank) for rank in range(RANKS)]


def test_every_number_lies_on_one_process(ranks: list[Shards]) -> None:
    whole = shapes.build(shapes.config("llama-2-70b"), routed=focus.FocusConfig.recipe())
    expected = {name: p.numel() for name, p in whole.named_parameters()}
    assert {name: total for name, (_, total) in ranks[0].items()} == expected
    for name, total in expected.items():
        assert sum(rank[name][0] for rank in ranks) == total, name


def test_the_estimate_says_what_the_largest_process_holds(ranks: list[Shards]) -> None:
    model = shapes.build(shapes.config("llama-2-70b"), torch.bfloat16, focus.FocusConfig.recipe())
    size = {name: p.element_size() for name, p in model.named_parameters()}
    held = max(sum(own * size[name] for name, (own, _) in rank.items()) for rank in ranks)
    assert Sizes.of(model).parts("fsdp2", RANKS)["weights"] == pytest.approx(held, rel=0.02)
