"""SparQ (arXiv:2312.04985): keys chosen by a query's largest components, query by query."""

from __future__ import annotations

import torch
from torch import Tensor

from experiments.methods.base import Near
from experiments.selection.choosing import Choosing
from experiments.selection.layer import Layer, heaviest
from experiments.settings.schema import Count
from focus.attention.checks import for_query_heads


class Components(Near):
    """Attributes:
    components: of a query that its approximate scores take (r).
    reallocate: whether the mass of the keys left out goes to the mean value.
    """

    components: Count = 16
    reallocate: bool = True


class SparQ(Choosing):
    """Each query head keeps the keys of the highest approximate weight."""

    name = "sparq"
    Settings = Components

    def kept(self, layer: Layer, budget: float) -> Tensor:
        """(B, H, M, T) bool."""
        self._last = self._weights(layer)
        return heaviest(layer, self._last, layer.quotas(budget))

    def output(self, layer: Layer, kept: Tensor) -> Tensor:
        """(B, H, M, D): attention over the kept pairs, and the mean value so far for the rest."""
        found = super().output(layer, kept)
        if not self.settings.reallocate:
            return found
        mass = (self._last * kept).sum(-1, keepdim=True).to(found.dtype)
        value = for_query_heads(layer.value, layer.query.shape[1]).float().cumsum(2)
        mean = value[:, :, layer.rows] / (layer.rows + 1)[:, None]
        return mass * found + (1 - mass) * mean.to(found.dtype)

    def _weights(self, layer: Layer) -> Tensor:
        """(B, H, M, T): softmax over logits of the largest components, with a temperature that
        makes up for the others (Equation 7 there)."""
        query = layer.query.float()
        taken = min(self.settings.components, query.shape[-1])
        largest = query.abs().topk(taken, sorted=False).indices
        part = torch.zeros_like(query).scatter_(-1, largest, query.gather(-1, largest))
        sizes = part.abs().sum(-1, keepdim=True) / query.abs().sum(-1, keepdim=True)
        position = torch.arange(layer.key.shape[2], device=query.device)
        logits = (part / sizes.clamp(min=1e-9).sqrt()) @ layer.keys.transpose(-1, -2) * layer.scale
        return logits.masked_fill_(position > layer.rows[:, None], -torch.inf).softmax(-1)
