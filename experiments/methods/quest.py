"""Quest (arXiv:2406.10774): pages of keys, chosen by a bound of their best logit."""

from __future__ import annotations

from torch import Tensor

from experiments.selection.choosing import Blocks, Choosing
from experiments.selection.layer import Layer, best_blocks, in_blocks


class Pages(Blocks):
    """Pages of 16 keys, as the paper has them; its first two layers, full there, choose here."""

    block: int = 16


class Quest(Choosing):
    """Each query head keeps the pages whose channel-wise extremes bound its logit highest."""

    name = "quest"
    Settings = Pages

    def kept(self, layer: Layer, budget: float) -> Tensor:
        """(B, H, M, T) bool."""
        pages, query = in_blocks(layer.keys, self.settings.block), layer.query.float()
        highest, lowest = (x.transpose(-1, -2) for x in (pages.amax(3), pages.amin(3)))
        # The greater of q * lowest and q * highest, in each channel.
        bound = query.clamp(min=0) @ highest + query.clamp(max=0) @ lowest
        return best_blocks(layer, bound, budget, self.settings.block)
