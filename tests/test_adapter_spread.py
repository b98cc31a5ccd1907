"""Adapters of models whose weights are elsewhere: offloaded, or spread over processes."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from transformers import PreTrainedModel

import focus
from focus.adapter import describe
from tests.adapters import CONFIG, logits, trained
from tests.models import build, token_ids


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return focus.save_adapter(trained(), tmp_path / "adapter")


@pytest.mark.parametrize("how", ["cpu_offload", "disk_offload"])
def test_offloaded_weights(tmp_path: Path, folder: Path, how: str) -> None:
    accelerate = pytest.importorskip("accelerate")
    model = build("llama")
    options = {"offload_dir": str(tmp_path / "disk")} if how == "disk_offload" else {}
    getattr(accelerate, how)(model, execution_device=torch.device("cpu"), **options)
    assert all(p.is_meta for p in model.model.layers[0].parameters())
    with pytest.warns(UserWarning, match="offloaded"):
        focus.load_adapter(model, folder)
    assert not any(p.is_meta for p in focus.trainable_parameters(model))
    assert torch.equal(logits(model), logits(trained()))


@pytest.mark.parametrize("how", ["cpu_offload", "disk_offload"])
def test_weights_offloaded_after_attach(tmp_path: Path, folder: Path, how: str) -> None:
    accelerate = pytest.importorskip("accelerate")
    plain, model = trained(), trained()
    ids = token_ids(1, 60)
    wanted = plain.generate(ids, max_new_tokens=6, do_sample=False)
    focus.save_adapter(focus.attach(build("llama"), CONFIG, seed=5), tmp_path / "other")
    focus.load_adapter(model, tmp_path / "other", name="other")
    options = {"offload_dir": str(tmp_path / "disk")} if how == "disk_offload" else {}
    getattr(accelerate, how)(model, execution_device=torch.device("cpu"), **options)
    assert torch.equal(model.generate(ids, max_new_tokens=6, do_sample=False), wanted)
    focus.save_adapter(model, tmp_path / "again")
    again = focus.load_adapter(build("llama"), tmp_path / "again", check_base=False)
    assert torch.equal(logits(again), logits(plain))
    focus.set_adapter(model, "other")
    assert not torch.equal(logits(model), logits(plain))
    focus.set_adapter(model, "default")
    assert torch.equal(logits(model), logits(plain))


CPU = torch.device("cpu")


def shard(model: PreTrainedModel) -> None:
    for layer in model.model.layers:
        fully_shard(layer.self_attn.focus_router)
        fully_shard(layer)
    fully_shard(model)


def process(rank: int, port: int, folder: Path) -> None:
    """One of two processes that save and switch adapters of a sharded model."""
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=2)
    try:
        model = trained()
        focus.load_adapter(model, describe(model), name="b")
        shard(model)
        # The folder of the second process shows whether it has written anything.
        focus.save_adapter(model, folder / str(rank))
        with pytest.raises(ValueError, match="attach, load and set adapters before fully_shard"):
            focus.set_adapter(model, "b")
        bare = build("llama")
        for layer in bare.model.layers:
            fully_shard(layer)
        with pytest.raises(ValueError, match="before fully_shard"):
            focus.attach(bare, CONFIG)
        assert all(p.requires_grad for p in bare.parameters())
        assert not any(m._forward_pre_hooks for m in bare.modules() if hasattr(m, "layer_idx"))
        flat = FullyShardedDataParallel(trained(), use_orig_params=True, device_id=CPU)
        with pytest.raises(ValueError, match="holds the routers in pieces"):
            focus.save_adapter(flat, folder / "flat")
        with FullyShardedDataParallel.summon_full_params(flat):
            focus.save_adapter(flat, folder / str(rank) / "whole")
    finally:
        dist.destroy_process_group()


def test_a_sharded_model_is_saved_whole_and_once(tmp_path: Path) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    mp.spawn(process, (port, tmp_path), nprocs=2)
    assert [path.name for path in tmp_path.iterdir()] == ["0"]
    with pytest.warns(UserWarning, match="spread over several processes"):
        loaded = focus.load_adapter(build("llama"), tmp_path / "0")
    assert torch.equal(logits(loaded), logits(trained()))
    whole = focus.load_adapter(build("llama"), tmp_path / "0" / "whole")
    assert torch.equal(logits(whole), logits(trained()))
