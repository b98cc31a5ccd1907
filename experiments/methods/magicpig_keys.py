"""MagicPIG with at most as many keys for every query: each query head samples from as many tables
as give it no more than that.

Shape suffixes: as :mod:`experiments.methods.magicpig`'s.
"""

from __future__ import annotations

import torch
from torch import Tensor
from transformers import PreTrainedModel

from experiments.methods.magicpig import AGREEING, Hashes, MagicPig
from experiments.selection.choosing import OfKeys
from experiments.selection.layer import Layer
from experiments.settings.schema import Count


class Keys(Hashes):
    """Attributes:
    keys: of each query in all, those near it among them, at most.
    """

    keys: Count = 32


class MagicPigOfKeys(OfKeys, MagicPig):
    """A query with no more keys before it than its number keeps all, unweighted. Where even the
    fewest tables find too many, as many of these are drawn, and count as much more."""

    name = "magicpig_keys"
    Settings = Keys

    def calibrate(self, model: PreTrainedModel, windows: list[Tensor]) -> None:
        """Mean keys by layer; no number of tables is for all queries."""
        self.centre(model, windows)

    def kept(self, layer: Layer, budget: float | None) -> Tensor:
        """(B, H, M, T) bool."""
        most, whole = layer.room(self.settings.keys), self._whole(layer)
        found = self._found(layer).masked_fill_(~layer.distant, self.settings.most_tables + 1)
        # As many tables as there are before the one that finds a key too many.
        ordered = torch.nn.functional.pad(found.sort(-1).values, (0, 1),
                                          value=self.settings.most_tables + 1)  # fmt: skip
        least = most.clamp(max=found.shape[-1]).expand(found.shape[:-1])[..., None]
        tables = (ordered.gather(-1, least.long()) - 1).clamp(min=AGREEING)
        sampled = found <= tables
        count = sampled.sum(-1, keepdim=True)
        drawn = chance(layer).masked_fill(~sampled, -1)
        rank = drawn.argsort(-1, descending=True)
        sampled &= rank.argsort(-1) < most[:, None]
        more = (count / most.clamp(min=1)[:, None]).clamp(min=1).log()
        self._bias = self.weight(layer, tables) + more
        self._bias.masked_fill_(whole[:, None] | layer.near, 0.0)
        return sampled | layer.near | layer.distant & whole[:, None]

    def output(self, layer: Layer, kept: Tensor) -> Tensor:
        """(B, H, M, D): a sampled pair counts by the inverse of the probability to be sampled."""
        return self.attended(layer, self._bias, kept)

    def _whole(self, layer: Layer) -> Tensor:
        """(M,) bool: queries with so few keys that none has to be left out."""
        return layer.rows < self.settings.keys

    def _found(self, layer: Layer) -> Tensor:
        """(B, H, M, T) int16: the table that is the second to give a key the query's code; one more
        than there are, where none does."""
        most = self.settings.most_tables
        return 1 + sum((agree < AGREEING).short() for agree in self.agreements(layer, most))


def chance(layer: Layer) -> Tensor:
    """(M, T) int64: a number for every pair as if at random, the same in a text of any length."""
    key = torch.arange(layer.key.shape[2], device=layer.key.device)
    mixed = (layer.rows[:, None] * 73856093) ^ (key * 19349663) ^ (layer.index * 83492791)
    return mixed * 2654435761 % 1000003
