"""Methods whose queries choose distant keys by scores: oracles and most rivals.

Every query head chooses for itself, unless a method says otherwise. The masks are formed whole, so
that what is compared is what a choice is worth, not how fast somebody's kernel runs it.

Shape suffixes: as :mod:`experiments.selection.layer`'s.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention
from transformers import PreTrainedModel

from experiments.methods.attending import attending
from experiments.methods.base import Counting, Method, Near, columns
from experiments.methods.fixed import rest
from experiments.methods.passes import Pass, watched
from experiments.selection.layer import Layer
from experiments.settings.experiment import Budget
from experiments.settings.schema import Count
from focus.attention.checks import for_query_heads
from focus.density import PairCounts

IMPLEMENTATION = "focus_choosing"


class Blocks(Near):
    """Near pairs, and blocks of so many keys side by side that are chosen whole."""

    block: Count = 64


class Choosing(Method):
    """A method whose queries choose keys layer by layer; near pairs are always kept."""

    Settings = Near
    untrainable = "it chooses by scores that training would move"
    causal: ClassVar[bool] = True  # no later token takes part in a choice

    def install(self, model: PreTrainedModel) -> None:
        """Nothing but what lets another attention be put in."""
        rest(model)

    @abstractmethod
    def kept(self, layer: Layer, budget: Any) -> Tensor:
        """(B, Hm, M, T) bool, Hm = Hk or H: the pairs that are kept, near ones among them."""

    def output(self, layer: Layer, kept: Tensor) -> Tensor:
        """(B, H, M, D): softmax attention over the kept pairs."""
        heads = layer.query.shape[1]
        key, value = (for_query_heads(x, heads) for x in (layer.key, layer.value))
        return scaled_dot_product_attention(layer.query, key, value, scale=layer.scale,
                                            attn_mask=for_query_heads(kept, heads))  # fmt: skip

    @contextmanager
    def applied(self, model: PreTrainedModel, budget: Budget | None) -> Iterator[Counting]:
        """Attention over chosen keys in every layer.

        Raises:
            ValueError: a budget that the method does not take; at a call, the input is padded, or
                goes on from a cache under a choice that is not causal, or the model has a sliding
                window or a soft-cap.
        """
        self.check(self.settings, budget, "budget")
        pairs: dict[int, tuple[int, int]] = {}  # kept, and routings
        near = self.settings.window, self.settings.sinks

        def output(layer: Layer) -> Tensor:
            if not self.causal and layer.query.shape[2] != layer.key.shape[2]:
                raise ValueError(f"{self.name}: it chooses for blocks of queries together, so it "
                                 "takes whole texts and cannot generate")  # fmt: skip
            with torch.no_grad():
                kept = self.kept(layer, budget)
            pairs[layer.index] = int(kept.count_nonzero()), len(kept) * kept.shape[1]
            return self.output(layer, kept)

        def counted(seen: Pass) -> PairCounts:
            return PairCounts.total(
                seen.keeping(count, routings // len(seen.real), *near)
                for count, routings in pairs.values()
            )

        with watched(model) as last, layer_by_layer(model, self.name, self.settings, output):
            yield lambda: counted(last())

    def describe(self, budget: Budget | None) -> dict[str, Any]:
        """The window and the sinks."""
        return columns(window=self.settings.window, sinks=self.settings.sinks)

    @classmethod
    def check(cls, settings: Any, budget: Budget | None, path: str) -> None:
        """A share; blocks within the window, or a choice would see keys that are still to come."""
        cls.check_taken(budget, path)
        block = getattr(settings, "block", 1)
        if cls.causal and block > settings.window:
            raise ValueError(f"{path}: method {cls.name} needs blocks of at most window = "
                             f"{settings.window} tokens, not {block}")  # fmt: skip


class OfKeys(Choosing):
    """As many keys for every query, whatever its place, in the place of a share of the pairs."""

    takes = "nothing"

    @classmethod
    def check(cls, settings: Any, budget: Budget | None, path: str) -> None:
        """No share beside the number of keys, which must be above that of near ones."""
        cls.check_taken(budget, path)
        near = settings.window + settings.sinks
        if settings.keys <= near:
            where = f"{path.rpartition('.')[0] or path}.method.keys"
            raise ValueError(f"{where}: {settings.keys} leaves nothing to choose beside window + "
                             f"sinks = {near}")  # fmt: skip


@contextmanager
def layer_by_layer(model: PreTrainedModel, what: str, near: Near,
                   output: Callable[[Layer], Tensor]) -> Iterator[None]:  # fmt: skip
    """The attached model with another output of its attention, (B, H, M, D) of each layer.

    Args:
        what: whose output it is, for errors.

    Raises:
        ValueError: at a call that has padding, a soft-cap, or a sliding window within the text.
    """

    def attention(module: nn.Module, query: Tensor, key: Tensor, value: Tensor,
                  attention_mask: Tensor | None, scaling: float | None = None,
                  **rest: Any) -> tuple[Tensor, None]:  # fmt: skip
        limited = rest.get("softcap") or (rest.get("sliding_window") or math.inf) < key.shape[2]
        if attention_mask is not None or limited:
            raise ValueError(f"{what}: it forms every pair, so it takes whole texts without padding"
                             ", and models without sliding windows and soft-cap")  # fmt: skip
        scale = query.shape[-1] ** -0.5 if scaling is None else scaling
        layer = Layer.of(module, query, key, value, scale, near)
        return output(layer).transpose(1, 2).contiguous(), None

    with attending(model, IMPLEMENTATION, attention):
        yield


def full_attention(layer: Layer) -> Tensor:
    """(B, H, T, D): of a whole text."""
    return scaled_dot_product_attention(layer.query, layer.key, layer.value, is_causal=True,
                                        scale=layer.scale, enable_gqa=True)  # fmt: skip


@torch.no_grad()
def observed(model: PreTrainedModel, windows: list[Tensor],
             near: Near) -> Iterator[Layer]:  # fmt: skip
    """Every layer of the model under full attention, window (1, T) after window."""
    found: list[Layer] = []

    def output(layer: Layer) -> Tensor:
        found.append(layer)
        return full_attention(layer)

    device = next(model.parameters()).device
    for ids in windows:
        found.clear()
        with layer_by_layer(model, "calibrate", near, output):
            model(input_ids=ids.to(device), use_cache=False)
        yield from found
