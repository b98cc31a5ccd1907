"""SeerAttention (arXiv:2410.13276): blocks of keys, chosen by a learned gate over pooled keys.

Queries are not pooled, so that no later one takes part in a choice; keys are pooled as the layer
has them, after the rotary embedding.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from experiments.selection.choosing import Blocks
from experiments.selection.layer import Layer, best_blocks, in_blocks
from experiments.selection.learned import Learned
from experiments.settings.schema import Count
from focus.attention.checks import for_query_heads


class Gated(Blocks):
    """Attributes:
    dim: of the gate; 96 has about as many parameters as our routers.
    """

    dim: Count = 96


class Gate(nn.Module):
    """A linear map of queries, and one of the mean, greatest and least key of a block."""

    def __init__(self, heads: int, key_heads: int, dim: int, size: int, block: int) -> None:
        super().__init__()
        self.block = block
        self.query = nn.Parameter(torch.randn(heads, dim, size) / dim**0.5)
        self.key = nn.Parameter(torch.randn(key_heads, 3 * dim, size) / (3 * dim) ** 0.5)

    def forward(self, layer: Layer) -> Tensor:
        """(B, H, M, N) float32."""
        blocks = in_blocks(layer.key.float(), self.block)
        pooled = torch.cat([blocks.mean(3), blocks.amax(3), blocks.amin(3)], -1) @ self.key.float()
        own = layer.query.float() @ self.query.float()
        pooled = for_query_heads(pooled, own.shape[1])
        return own @ pooled.transpose(-1, -2) / own.shape[-1] ** 0.5


class Seer(Learned):
    """Each query head keeps the blocks that its gate scores highest; the gate learns the greatest
    weight of full attention in each block."""

    name = "seer"
    Settings = Gated

    def network(self, heads: int, key_heads: int, dim: int) -> nn.Module:
        """A gate."""
        return Gate(heads, key_heads, dim, self.settings.dim, self.settings.block)

    def wanted(self, layer: Layer) -> tuple[Tensor, Tensor]:
        """(B, H, M, N): the greatest weight of each block among distant keys."""
        weights = layer.logits().softmax(-1).masked_fill_(~layer.distant, 0.0)
        size = self.settings.block
        missing = -weights.shape[-1] % size
        greatest = nn.functional.pad(weights, (0, missing)).unflatten(-1, (-1, size)).amax(-1)
        among = nn.functional.pad(layer.distant, (0, missing)).unflatten(-1, (-1, size)).any(-1)
        return greatest, among

    def kept(self, layer: Layer, budget: float) -> Tensor:
        """(B, H, M, T) bool."""
        return best_blocks(layer, self.scores(layer), budget, self.settings.block)
