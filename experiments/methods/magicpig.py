"""MagicPIG (arXiv:2410.16179): keys sampled by locality-sensitive hashing, weighted for it.

Shape suffixes beside :mod:`experiments.selection.layer`'s: L tables.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import normalize, scaled_dot_product_attention
from transformers import PreTrainedModel

from experiments.methods.base import Near
from experiments.selection.choosing import Choosing, observed
from experiments.selection.layer import Layer
from experiments.settings.schema import Count
from focus.attention.checks import for_query_heads

AGREEING = 2  # tables in which a key and a query must fall together


class Hashes(Near):
    """Attributes:
    bits: of a table's code; fewer than the paper's 10, as budgets here are larger.
    most_tables: as many as a budget may take; fewer, where fewer find as many keys.
    """

    bits: Count = 6
    most_tables: Count = 96


class MagicPig(Choosing):
    """A key is sampled where two tables or more give it the query's code, and counts as much more
    as it was unlikely to be. Keys are centred on their mean over training windows: their mean over
    the text would tell of later ones. The number of tables is what keeps the budget there."""

    name = "magicpig"
    Settings = Hashes

    def __init__(self, settings: Any, seed: int) -> None:
        super().__init__(settings, seed)
        self._centres: dict[int, Tensor] = {}
        self._shares: list[float] = []  # of distant pairs kept, by number of tables less one

    def calibrate(self, model: PreTrainedModel, windows: list[Tensor]) -> None:
        """Mean keys by layer, and how many pairs each number of tables keeps."""
        self.centre(model, windows)
        kept = torch.zeros(self.settings.most_tables, dtype=torch.float64)
        distant = 0
        for layer in observed(model, windows, self.settings):
            far = layer.distant
            distant += int(far.sum()) * layer.query.shape[1]
            for tables, agree in enumerate(self.agreements(layer, self.settings.most_tables)):
                kept[tables] += int(((agree >= AGREEING) & far).sum())
        self._shares = (kept / max(distant, 1)).tolist()

    def centre(self, model: PreTrainedModel, windows: list[Tensor]) -> None:
        """Mean keys by layer."""
        sums: dict[int, Tensor] = {}
        for layer in observed(model, windows, self.settings):
            sums[layer.index] = sums.get(layer.index, 0) + layer.keys.mean(2, keepdim=True)
        self._centres = {index: total / len(windows) for index, total in sums.items()}

    def kept(self, layer: Layer, budget: float) -> Tensor:
        """(B, H, M, T) bool."""
        *_, agree = self.agreements(layer, self._tables(budget))
        self._used = self._tables(budget)
        return (agree >= AGREEING) & layer.distant | layer.near

    def output(self, layer: Layer, kept: Tensor) -> Tensor:
        """(B, H, M, D): a distant pair counts by the inverse of the probability to be sampled."""
        weight = torch.where(layer.distant, self.weight(layer, self._used), 0.0)
        return self.attended(layer, weight, kept)

    def weight(self, layer: Layer, tables: int | Tensor) -> Tensor:
        """(B, H, M, T): minus the logarithm of the probability that so many tables, one number or
        (B, H, M, 1), find a pair."""
        query, key = layer.query.float(), self._centred(layer)
        angle = normalize(query, dim=-1) @ normalize(key, dim=-1).transpose(-1, -2)
        same = (1 - angle.clamp(-1, 1).acos() / math.pi) ** self.settings.bits
        none, one = (1 - same) ** tables, tables * same * (1 - same) ** (tables - 1)
        return -(1 - none - one).clamp(min=1e-6).log()

    def attended(self, layer: Layer, weight: Tensor, kept: Tensor) -> Tensor:
        """(B, H, M, D) over the pairs that are kept, with their weights' logarithms added."""
        bias = weight.masked_fill(~kept, -torch.inf)
        value = for_query_heads(layer.value, layer.query.shape[1]).float()
        out = scaled_dot_product_attention(layer.query.float(), layer.keys, value, attn_mask=bias,
                                           scale=layer.scale)  # fmt: skip
        return out.to(layer.query.dtype)

    def _tables(self, budget: float) -> int:
        """The most that keep no more than the budget; one more than needed to agree at all."""
        if not self._shares:
            raise ValueError("calibrate: numbers of tables need training windows to be chosen on")
        return max(AGREEING, sum(share <= budget for share in self._shares))

    def _centred(self, layer: Layer) -> Tensor:
        if layer.index not in self._centres:
            raise ValueError("calibrate: keys need training windows to be centred on")
        return layer.keys - self._centres[layer.index].to(layer.key.device)

    def agreements(self, layer: Layer, tables: int) -> Iterator[Tensor]:
        """After each table, (B, H, M, T) int8: in how many so far a key has the query's code."""
        bits, size = self.settings.bits, layer.key.shape[-1]
        generator = torch.Generator().manual_seed(self.seed * 1009 + layer.index)
        planes = torch.randn(self.settings.most_tables, bits, size, generator=generator)
        powers = 2 ** torch.arange(bits, dtype=torch.float32, device=layer.key.device)
        query, key = layer.query.float(), self._centred(layer)
        agree = torch.zeros(*query.shape[:3], key.shape[2], dtype=torch.int8, device=key.device)
        for plane in planes[:tables].to(key.device):
            codes = [((x @ plane.T > 0).float() @ powers).to(torch.int16) for x in (query, key)]
            agree += codes[0].unsqueeze(-1) == codes[1].unsqueeze(-2)
            yield agree
