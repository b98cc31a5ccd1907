"""The oracle chosen for each query head, as the recipe's routers may choose."""

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


METHOD = OracleHeads
