"""MoBA (arXiv:2502.13189): blocks of keys, chosen by the logit of their mean; nothing trained."""

from __future__ import annotations

from torch import Tensor

from experiments.selection.choosing import Blocks, Choosing
from experiments.selection.layer import Layer, best_blocks, in_blocks


class Moba(Choosing):
    """Each query head keeps the blocks whose mean key it weighs most; the window stands for the
    query's own block."""

    name = "moba"
    Settings = Blocks

    def kept(self, layer: Layer, budget: float) -> Tensor:
        """(B, H, M, T) bool."""
        means = in_blocks(layer.keys, self.settings.block).mean(3)
        scores = layer.query.float() @ means.transpose(-1, -2)
        return best_blocks(layer, scores, budget, self.settings.block)
