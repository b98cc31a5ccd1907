"""Performer (arXiv:2009.14794): softmax by positive random features, in the place of a mask.

Formed pair by pair, which is the same as its prefix sums: what it costs in quality is read here,
not how fast it is.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from experiments.methods.base import Counting, Method, Near, check_none, columns
from experiments.methods.fixed import rest
from experiments.methods.passes import watched
from experiments.selection.choosing import layer_by_layer
from experiments.selection.layer import Layer
from experiments.settings.experiment import Budget
from experiments.settings.schema import Count
from focus.attention.checks import for_query_heads
from focus.density import PairCounts


class Features(Near):
    """Attributes:
    features: random ones of a head; the paper's default is D log D, 266 of D = 64.
    """

    features: Count = 266


class Performer(Method):
    """Every causal pair, with the weight that random features give it (FAVOR+); no sparsity."""

    name = "performer"
    Settings = Features
    untrainable = "its random features are an estimate of weights that training would move"

    def install(self, model: PreTrainedModel) -> None:
        """Nothing but what lets another attention be put in."""
        rest(model)

    @contextmanager
    def applied(self, model: PreTrainedModel, budget: Budget | None) -> Iterator[Counting]:
        """Attention by random features in every layer, whole texts or with a cache."""
        self.check(self.settings, budget, "budget")

        def output(layer: Layer) -> Tensor:
            query = layer.query
            generator = torch.Generator().manual_seed(self.seed * 1009 + layer.index)
            drawn = orthogonal(self.settings.features, query.shape[-1], generator)
            return by_features(query, layer.key, layer.value, layer.scale, drawn.to(query.device))

        def counted() -> PairCounts:
            seen = last()
            causal, near, distant, _ = seen.pairs(self.settings.window, self.settings.sinks)
            return PairCounts(causal, near, distant, distant)

        with watched(model) as last, layer_by_layer(model, self.name, self.settings, output):
            yield counted

    def describe(self, budget: Budget | None) -> dict[str, Any]:
        """There is no mask."""
        return columns()

    @classmethod
    def check(cls, settings: Any, budget: Budget | None, path: str) -> None:
        """It keeps every pair."""
        check_none(cls.name, budget, path)


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
