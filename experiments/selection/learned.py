"""Small networks that learn, layer by layer, which keys full attention weighs most.

The model is frozen; the networks are trained by the regime ``distil``.

Shape suffixes: as :mod:`experiments.selection.layer`'s.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import kl_div
from torch.utils.checkpoint import checkpoint
from transformers import PreTrainedModel

from experiments.methods.fixed import rest
from experiments.selection.choosing import Choosing, full_attention, layer_by_layer
from experiments.selection.layer import Layer
from experiments.settings.experiment import Experiment
from focus.state import attached, transformers_model

SELECTORS = "selectors"  # of a model: its networks, by layer


class Learned(Choosing):
    """A choice by networks, one a layer, in the model's module dictionary ``selectors``."""

    def install(self, model: PreTrainedModel) -> None:
        """Networks drawn by the seed, float32, one for each attention layer."""
        rest(model)
        config = transformers_model(model).get_decoder().config
        dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        shape = config.num_attention_heads, config.num_key_value_heads, dim
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.seed)
            networks = {str(index): self.network(*shape) for index in attached(model).routers}
        device = next(model.parameters()).device
        self.networks = nn.ModuleDict(networks).to(device).requires_grad_(False)
        setattr(model, SELECTORS, self.networks)

    def scores(self, layer: Layer) -> Tensor:
        """What the layer's network makes of it."""
        found: Tensor = self.networks[str(layer.index)](layer)
        return found

    @abstractmethod
    def network(self, heads: int, key_heads: int, dim: int) -> nn.Module:
        """One layer's, given a :class:`Layer`: scores (B, Hm, M, N) of its blocks of keys, or
        (B, Hm, M, T) of its keys."""

    @abstractmethod
    def wanted(self, layer: Layer) -> tuple[Tensor, Tensor]:
        """What full attention weighs, not normalised, of the shape of the scores; and (M, N) or
        (M, T) bool: of what a query chooses among."""

    @contextmanager
    def distilling(self, model: PreTrainedModel, rows: int) -> Iterator[list[Tensor]]:
        """Full attention; the list gets every layer's mean divergence, nats, over so many queries
        (all, where there are fewer) drawn from torch's own generator."""
        found: list[Tensor] = []

        def output(layer: Layer) -> Tensor:
            query = layer.query
            some = torch.randperm(query.shape[2])[:rows].sort().values.to(query.device)
            drawn = replace(layer, query=query[:, :, some], rows=layer.rows[some])
            # A layer's scores are large; the backward pass forms them again.
            found.append(checkpoint(self._divergence, drawn, use_reentrant=False))
            return full_attention(layer)

        with layer_by_layer(model, self.name, self.settings, output):
            yield found

    def _divergence(self, layer: Layer) -> Tensor:
        with torch.no_grad():
            wanted, among = self.wanted(layer)
            choosing = among.sum(-1) > 1
            wanted = wanted[:, :, choosing].masked_fill(~among[choosing], 0.0)
            wanted = wanted / wanted.sum(-1, keepdim=True).clamp(min=1e-30)
        scores = self.scores(layer)[:, :, choosing].masked_fill(~among[choosing], -1e9)
        if not scores.numel():
            return scores.sum()
        each = kl_div(scores.log_softmax(-1), wanted, reduction="none").sum(-1)
        return each.mean()

    @classmethod
    def check_cell(cls, settings: Any, cell: Experiment, starts: Sequence[Experiment],
                   path: str) -> None:  # fmt: skip
        """It is trained by distilling, or not at all."""
        if cell.regime.name not in ("distil", "none"):
            raise ValueError(f"{path}.regime.name: method {cls.name} is trained by distil alone")
