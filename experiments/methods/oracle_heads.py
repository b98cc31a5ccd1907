"""A reference that needs every pair: queries keep the distant keys that full attention weighs most,
chosen for each query head, as the recipe's routers may choose.

Every query, head and layer keeps the same share, so groups that spend pairs unevenly may beat it.
"""

from __future__ import annotations

from torch import Tensor

from experiments.selection.choosing import Choosing
from experiments.selection.layer import Layer, heaviest


class OracleHeads(Choosing):
    """The heaviest share of each query's distant keys, for each query head by its own weights."""

    name = "oracle_heads"

    def kept(self, layer: Layer, budget: float) -> Tensor:
        """(B, H, M, T) bool."""
        return heaviest(layer, layer.logits(), layer.quotas(budget))  # softmax keeps their order
