"""Performer (arXiv:2009.14794): softmax by positive random features, in the place of a mask.

Formed pair by pair, which is the same as its prefix sums: what it costs in quality is read here,
not how fast it is.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from experiments.methods.base import Near, columns
from experiments.selection.choosing import Choosing
from experiments.selection.layer import Layer
from experiments.settings.experiment import Budget
from experiments.settings.schema import Count
from focus.attention.checks import for_query_heads


class Features(Near):
    """Attributes:
    features: random ones of a head; the paper's default is D log D, 266 of D = 64.
    """

    features: Count = 266


class Performer(Choosing):
    """Every causal pair, with the weight that random features give it (FAVOR+); no sparsity."""

    name = "performer"
    takes = "nothing"
    Settings = Features
    untrainable = "its random features are an estimate of weights that training would move"

    def kept(self, layer: Layer, budget: None) -> Tensor:
        """(B, 1, M, T) bool: all."""
        return (layer.near | layer.distant).expand(len(layer.query), 1, -1, -1)

    def output(self, layer: Layer, kept: Tensor) -> Tensor:
        """(B, H, M, D): attention by random features."""
        query = layer.query
        generator = torch.Generator().manual_seed(self.seed * 1009 + layer.index)
        drawn = orthogonal(self.settings.features, query.shape[-1], generator)
        return by_features(query, layer.key, layer.value, layer.scale, drawn.to(query.device))

    def describe(self, budget: Budget | None) -> dict[str, Any]:
        """There is no mask."""
        return columns()


def orthogonal(features: int, size: int, generator: torch.Generator) -> Tensor:
    """(features, size): rows of one block of ``size`` at right angles, as long as Gaussian ones."""
    blocks = [torch.linalg.qr(torch.randn(size, size, generator=generator))[0].T
              for _ in range(-(-features // size))]  # fmt: skip
    lengths = torch.randn(features, size, generator=generator).norm(dim=-1, keepdim=True)
    return torch.cat(blocks)[:features] * lengths


def by_features(query: Tensor, key: Tensor, value: Tensor, scale: float, drawn: Tensor) -> Tensor:
    """(B, H, M, D): values weighted by products of features exp(w x - |x|^2 / 2), Equation 5 there.

    Args:
        query: (B, H, M, D), the last M of T tokens; key, value: (B, Hk, T, D).
        drawn: (F, D).
    """
    heads, tokens = query.shape[1], key.shape[2]
    rows, columns = (
        (x.double() * scale**0.5) @ drawn.double().T
        - (x.double() ** 2).sum(-1, keepdim=True) * (scale / 2)
        for x in (query, for_query_heads(key, heads))
    )
    # A factor of a query, or of all keys of a head, changes no weight.
    rows = (rows - rows.amax(-1, keepdim=True)).exp().float()
    columns = (columns - columns.amax((2, 3), keepdim=True)).exp().float()
    position = torch.arange(tokens, device=query.device)
    future = position > position[tokens - query.shape[2] :, None]
    weights = (rows @ columns.transpose(-1, -2)).masked_fill_(future, 0.0)
    weights = weights / weights.sum(-1, keepdim=True).clamp(min=torch.finfo(weights.dtype).tiny)
    return (weights @ for_query_heads(value, heads).float()).to(query.dtype)
