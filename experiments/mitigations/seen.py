"""What the routers saw in the last forward pass, and what processes that train together have of one
another: each sees its own windows and, under FSDP, its own part of a router.

Shapes: B batch, S sides, Hr routers a layer, T tokens, E model dimension, R routing dimension, K
groups; one side and one router a layer (``routers`` of ``layer`` or ``paper``).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, distributed
from torch.distributed.tensor import DTensor, distribute_tensor

from focus.routing import Router


class Seen:
    """Keeps each router's logits of its last call, with gradients, and its inputs.

    Args:
        routers: whose; hooks stay for as long as they do.

    Attributes:
        hidden: (B, T, E) by router, without gradients.
        logits: (B, S, Hr, T, K) by router, scaled by the temperature and balanced as the gate's.
        inputs: whether inputs are kept where gradients are on, too. In all layers they are as much
            as computing activations twice leaves: who needs them sets it.
    """

    def __init__(self, routers: Iterable[Router]) -> None:
        self.inputs, self._closed = False, False
        self.hidden: dict[Router, Tensor] = {}
        self.logits: dict[Router, Tensor] = {}
        for router in routers:
            router.register_forward_hook(self._keep)

    def _keep(self, router: Router, args: tuple[Any, ...], output: Any) -> None:
        if self._closed or not isinstance(output, Tensor):
            return
        self.logits[router] = output
        if self.inputs or not torch.is_grad_enabled():
            self.hidden[router] = args[0].detach()

    @contextmanager
    def closed(self) -> Iterator[None]:
        """Keeps what is there: layers that a backward pass computes again are those of before, and
        their logits would hold on to all activations."""
        self._closed = True
        try:
            yield
        finally:
            self._closed = False

    def assigned(self, router: Router) -> Tensor:
        """The group of every token, (B, S, Hr, T)."""
        return self.logits[router].detach().argmax(-1)

    @torch.no_grad()
    def projected(self, router: Router) -> Tensor:
        """Every token in the routing space of one side and router, (B * T, R)."""
        hidden = self.hidden[router].detach().flatten(0, 1).float()
        if router.config.routers != "paper":
            hidden = torch.nn.functional.layer_norm(hidden, hidden.shape[-1:])
        return hidden @ gathered(router.projection)[0, 0]


def gathered(tensor: Tensor) -> Tensor:
    """All of a tensor, on its device and without gradients; where FSDP has sharded it every process
    must ask for it."""
    found: Tensor = tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
    return found.detach()


@torch.no_grad()
def put(parameter: Tensor, values: Tensor) -> None:
    """Writes values, which all processes have alike, into a parameter; where FSDP has sharded it,
    each process its own part."""
    if isinstance(parameter, DTensor):
        mesh, placements = parameter.device_mesh, parameter.placements
        values = distribute_tensor(values, mesh, placements, src_data_rank=None)
    parameter.copy_(values)


@torch.no_grad()
def everywhere(own: Tensor) -> Tensor:
    """Rows of all processes, in the order in which one process alone would have them; each must
    give as many. What is decided by them is decided alike in every process."""
    own = own.detach().contiguous()
    if not (distributed.is_available() and distributed.is_initialized()):
        return own
    parts = [torch.empty_like(own) for _ in range(distributed.get_world_size())]
    distributed.all_gather(parts, own)
    return torch.cat(parts)


def means(points: Tensor, groups: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Mean of the points (N, R) of every group, (K, R), and how many there are, (K,).

    Args:
        groups: of the points, (N,).
        count: K.
    """
    members = torch.nn.functional.one_hot(groups, count)
    counts = members.sum(0)
    sums = members.to(points.dtype).T @ points
    return sums / counts.clamp(min=1)[:, None], counts
