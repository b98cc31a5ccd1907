"""The lightning indexer (DeepSeek-V3.2): keys chosen by a few small heads, for all heads together.

It reads the layer's own queries and keys, in the place of hidden states.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from experiments.methods.base import Near
from experiments.selection.layer import Layer, heaviest
from experiments.selection.learned import Learned
from experiments.settings.schema import Count


class Indexed(Near):
    """Attributes:
    heads: of the indexer; dim: of each. With 4 of 44, about as many parameters as our routers.
    """

    heads: Count = 4
    dim: Count = 44


class Index(nn.Module):
    """Sum over its heads of w * relu(q' . k')."""

    def __init__(self, wide: int, key_wide: int, heads: int, dim: int) -> None:
        super().__init__()
        self.query = nn.Parameter(torch.randn(heads, wide, dim) / wide**0.5)
        self.key = nn.Parameter(torch.randn(key_wide, dim) / key_wide**0.5)
        self.weight = nn.Parameter(torch.randn(wide, heads) / wide**0.5)

    def forward(self, layer: Layer) -> Tensor:
        """(B, 1, M, T) float32."""
        query = layer.query.float().transpose(1, 2).flatten(2)  # (B, M, H * D)
        key = layer.key.float().transpose(1, 2).flatten(2) @ self.key.float()
        own = query.unsqueeze(1) @ self.query.float()  # (B, heads, M, dim)
        each = (own @ key.unsqueeze(1).transpose(-1, -2) / own.shape[-1] ** 0.5).relu()
        weight = (query @ self.weight.float()).transpose(1, 2).unsqueeze(-1)
        return (each * weight).sum(1, keepdim=True)


class Indexer(Learned):
    """Each query keeps, in all heads, the keys that the indexer scores highest; it learns the
    weights of full attention, summed over heads. It scores every pair, in few dimensions."""

    name = "indexer"
    Settings = Indexed

    def network(self, heads: int, key_heads: int, dim: int) -> nn.Module:
        """An indexer."""
        return Index(heads * dim, key_heads * dim, self.settings.heads, self.settings.dim)

    def wanted(self, layer: Layer) -> tuple[Tensor, Tensor]:
        """(B, 1, M, T): weights summed over heads."""
        return layer.logits().softmax(-1).sum(1, keepdim=True), layer.distant

    def kept(self, layer: Layer, budget: float) -> Tensor:
        """(B, 1, M, T) bool."""
        return heaviest(layer, self.scores(layer), layer.quotas(budget))
