"""A reference that needs every pair: queries keep the distant keys that full attention weighs most.

Every query, head and layer keeps the same share, so groups that spend pairs unevenly may beat it;
chosen for each key head, so may groups of query heads, which need not agree.
"""

from __future__ import annotations

from torch import Tensor

from experiments.selection.choosing import Choosing
from experiments.selection.layer import Layer, heaviest


class Oracle(Choosing):
    """The heaviest share of each query's distant keys, by the mean of a key head's query heads."""

    name = "oracle"

    def kept(self, layer: Layer, budget: float) -> Tensor:
        """(B, Hk, M, T) bool."""
        weights = layer.logits().softmax(-1).unflatten(1, (layer.key.shape[1], -1)).mean(2)
        return heaviest(layer, weights, layer.quotas(budget))


METHOD = Oracle
