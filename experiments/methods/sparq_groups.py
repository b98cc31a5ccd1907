"""Groups, then SparQ (arXiv:2312.04985): routers say which keys a query searches, its largest
components which of those it keeps. SparQ alone searches them all.

Shape suffixes: B batch, H query heads, Hq query routings, M new tokens, T tokens so far.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from experiments.methods.base import Counting, columns
from experiments.methods.focus import Focus, FocusSettings
from experiments.methods.sparq import SparQ
from experiments.selection.choosing import Choosing
from experiments.selection.layer import Layer
from experiments.settings.experiment import Budget
from experiments.settings.schema import Count
from focus.attention.checks import for_query_heads
from focus.attention.dense import pairs_kept
from focus.call import KEYWORD
from focus.config import FocusConfig
from focus.hooks import LayerCall
from focus.ngrams import keys_after_ngrams
from focus.routing import Router
from focus.state import attached


class Searching(FocusSettings):
    """Attributes:
    components: of a query that its approximate scores take.
    top_k: groups that a query searches, of the routers of a start.
    """

    components: Count = 16


class SparQGroups(SparQ, Focus):
    """Each query head keeps the keys of the highest approximate weight that it searches; a head
    that searches more groups keeps proportionally more keys.

    The mass of what is left out does not go to the mean value, as SparQ's does: that mass is known
    of searched keys alone, and on validation texts it read worse so.
    """

    name = "sparq_groups"
    takes_routers = True
    Settings = Searching

    def install(self, model: PreTrainedModel) -> None:
        """The start's routers stay."""
        Focus.install(self, model)

    @contextmanager
    def applied(self, model: PreTrainedModel, budget: Budget | None) -> Iterator[Counting]:
        """As SparQ's; what the routers are shown is noted on the way."""
        self._layers: dict[int, LayerCall] = {}

        def note(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            layer: LayerCall = kwargs[KEYWORD]
            self._layers[layer.index] = layer

        with ExitStack() as stack:
            for module in model.modules():
                if "focus_router" in module._modules:
                    hook = module.register_forward_pre_hook(note, with_kwargs=True)
                    stack.callback(hook.remove)
            counting = stack.enter_context(super().applied(model, budget))
            self._shares = shares(attached(model).routers, self.config, budget)
            yield counting
        self._layers.clear()

    def kept(self, layer: Layer, budget: Any) -> Tensor:
        """(B, H, M, T) bool."""
        self._among = self._searched(layer)
        return super().kept(layer, self._shares[layer.index]) & self._among

    def output(self, layer: Layer, kept: Tensor) -> Tensor:
        """(B, H, M, D): attention over the kept pairs."""
        return Choosing.output(self, layer, kept)

    def _weights(self, layer: Layer) -> Tensor:
        """SparQ's, zero where its query does not search."""
        return super()._weights(layer) * self._among

    def _searched(self, layer: Layer) -> Tensor:
        """(B, H, M, T) bool: what the hard mask keeps, of the near pairs, the query's groups, and
        n-gram matches."""
        seen, config = self._layers[layer.index], self.config.replace(balance="causal")
        tokens, heads = layer.key.shape[2], layer.query.shape[1]
        if layer.query.shape[2] != tokens:
            raise ValueError(f"{self.name}: groups of earlier tokens are not kept, so it takes "
                             "whole texts and cannot generate")  # fmt: skip
        found, extra = seen.router(seen.hidden, mask=config), None  # type: ignore[misc]
        if config.ngram and seen.call.ids is not None:
            how = config.ngram, config.ngram_keys, config.window, tokens
            extra = keys_after_ngrams(seen.call.ids, *how)
        kept = pairs_kept(found.query, found.of_keys, config.window, config.sinks, None, extra)
        return for_query_heads(kept, heads)

    def describe(self, budget: Budget | None) -> dict[str, Any]:
        """K, and the groups searched."""
        own = self.config
        return columns(own.num_groups, own.top_k, own.probe, own.ngram, own.window, own.sinks,
                       "causal")  # fmt: skip

    @classmethod
    def check(cls, settings: Any, budget: Budget | None, path: str) -> None:
        """A share of the distant pairs; none of focus's settings that it would not follow."""
        super().check(settings, budget, path)
        for name in ("dense_every", "dense_last", "shared_layers"):
            if getattr(settings, name) != type(settings).model_fields[name].default:
                raise ValueError(f"{path}: method {cls.name} knows no {name}")


def shares(routers: Mapping[int, Router], config: FocusConfig, budget: Any) -> dict[int, Tensor]:
    """By layer, the share of the distant pairs that each query routing keeps, (Hq,) float64. Their
    mean is the budget, or less: a head that keeps all does not pass on what it cannot use."""
    searched = {}
    for index, router in routers.items():
        groups = torch.tensor([config.top_k])
        if config.allocated:
            groups = (router.taken_at <= config.top_k).sum(-1)
        searched[index] = groups.double() / config.num_groups + config.heavy_hitters
    mean = torch.cat(list(searched.values())).mean()
    return {index: (budget * each / mean).clamp(max=1.0) for index, each in searched.items()}
