"""What the routers saw in the last forward pass.

Shapes: B batch, S sides, Hr routers a layer, T tokens, E model dimension, R routing dimension, K
groups; one side and one router a layer (``routers`` of ``layer`` or ``paper``).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from focus.routing import Router


class Seen:
    """Keeps each router's inputs and logits of its last call, with gradients.

    Args:
        routers: whose; hooks stay for as long as they do.

    Attributes:
        hidden: (B, T, E) by router.
        logits: (B, S, Hr, T, K) by router, scaled by the temperature and balanced as the gate's.
    """

    def __init__(self, routers: Iterable[Router]) -> None:
        self.hidden: dict[Router, Tensor] = {}
        self.logits: dict[Router, Tensor] = {}
        for router in routers:
            router.register_forward_hook(self._keep)

    def _keep(self, router: Router, args: tuple[Any, ...], output: Any) -> None:
        if isinstance(output, Tensor):
            self.hidden[router], self.logits[router] = args[0], output

    def assigned(self, router: Router) -> Tensor:
        """The group of every token, (B, S, Hr, T)."""
        return self.logits[router].detach().argmax(-1)

    @torch.no_grad()
    def projected(self, router: Router) -> Tensor:
        """Every token in the routing space of one side and router, (B * T, R)."""
        hidden = self.hidden[router].detach().flatten(0, 1).float()
        if router.config.routers != "paper":
            hidden = torch.nn.functional.layer_norm(hidden, hidden.shape[-1:])
        return hidden @ router.projection[0, 0]

    @torch.no_grad()
    def means(self, router: Router, groups: Tensor) -> tuple[Tensor, Tensor]:
        """Mean of the projected tokens of every group, (K, R), and how many there are, (K,).

        Args:
            groups: of the tokens, (B * T,).
        """
        points = self.projected(router)
        members = torch.nn.functional.one_hot(groups.flatten(), router.config.num_groups)
        counts = members.sum(0)
        sums = members.to(points.dtype).T @ points
        return sums / counts.clamp(min=1)[:, None], counts
