"""SparQ with as many keys for every query: what its paper calls k, a number and not a share."""

from __future__ import annotations

from torch import Tensor

from experiments.methods.sparq import Components, SparQ
from experiments.selection.choosing import OfKeys
from experiments.selection.layer import Layer, heaviest
from experiments.settings.schema import Count


class Keys(Components):
    """Attributes:
    keys: of each query in all, those near it among them.
    """

    keys: Count = 32


class SparQOfKeys(OfKeys, SparQ):
    """Each query head keeps the near keys and the others of the highest approximate weight, until
    it has its number; a query with no more keys before it keeps all."""

    name = "sparq_keys"
    Settings = Keys

    def kept(self, layer: Layer, budget: float | None) -> Tensor:
        """(B, H, M, T) bool."""
        self._last = self._weights(layer)
        return heaviest(layer, self._last, layer.room(self.settings.keys))
