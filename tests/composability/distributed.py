"""Two gloo processes that train one step together, for the cells of DDP and FSDP2."""

from __future__ import annotations

import os
import socket
import tempfile
from functools import cache
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import Tensor


def run_two(wrapper: str, mode: str) -> tuple[Tensor, Tensor]:
    """(what two processes found with half of the batch each, what one process finds with all):
    loss, gradients and potentials, flat."""
    return both(wrapper)[mode], step(wrapper=None, mode=mode)


@cache
def both(wrapper: str) -> dict[str, Tensor]:
    """What two processes found, by mode: they start once."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(_rank, (2, port, wrapper, folder), nprocs=2)
        found: dict[str, Tensor] = torch.load(Path(folder) / "found.pt")
    return found


def _rank(rank: int, world: int, port: int, wrapper: str, folder: str) -> None:
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=world)
    try:
        found = {mode: step(wrapper, mode) for mode in ("soft", "hard", "full")}
        if rank == 0:
            torch.save(found, Path(folder) / "found.pt")
    finally:
        dist.destroy_process_group()


def step(wrapper: str | None, mode: str) -> Tensor:
    """One forward and backward pass of this process's share of the batch."""
    import focus
    from tests.composability.clients.made import attached, ids

    rank, world = (dist.get_rank(), dist.get_world_size()) if wrapper else (0, 1)
    model = attached().train()
    embedding = model.get_input_embeddings().weight
    if mode != "soft":  # what gets no gradient must not ask for one: DDP would wait for it
        model.requires_grad_(False)
        embedding.requires_grad_()
    if wrapper == "fsdp2":
        _shard(model)
        embedding = model.get_input_embeddings().weight
    run = torch.nn.parallel.DistributedDataParallel(model) if wrapper == "ddp" else model
    own = ids(4)[rank::world]
    with focus.mode(run, mode):
        loss = run(own, labels=own, use_cache=False).loss
    loss.backward()
    total = loss.detach().clone()
    if wrapper:
        dist.all_reduce(total)
    wanted = list(focus.trainable_parameters(run)) if mode == "soft" else [embedding]
    parts = [_full(p.grad) for p in wanted]
    parts += [_full(router.potentials) for router in focus.state.attached(run).routers.values()]
    return torch.cat([total[None] / world, *(part.flatten() for part in parts)])


def _shard(model: torch.nn.Module) -> None:
    from torch.distributed.fsdp import fully_shard

    for layer in model.model.layers:
        fully_shard(
            layer.self_attn.focus_router
        )  # float32 whatever the model is: a unit of its own
        fully_shard(layer)
    fully_shard(model)


def _full(tensor: Tensor) -> Tensor:
    return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor
