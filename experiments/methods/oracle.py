"""A reference that needs every pair: queries keep the distant keys that full attention weighs most.

Every query, head and layer keeps the same share, so groups that spend pairs unevenly may beat it;
chosen for each key head, so may groups of query heads, which need not agree.

Shape suffixes: B batch, H query heads, Hk key heads, T tokens, D head dimension.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from experiments.methods.attending import attending, plain_scale
from experiments.methods.base import Counting, Method, Near, check_share, columns
from experiments.methods.fixed import rest
from experiments.methods.passes import Pass, watched
from experiments.settings.experiment import Budget
from focus.attention.dense import attend
from focus.density import PairCounts

IMPLEMENTATION = "focus_oracle"


class Oracle(Method):
    """The heaviest share of each query's distant keys, chosen for each key head."""

    name = "oracle"
    Settings = Near
    untrainable = "it chooses by weights that training would move"
    each_head: ClassVar[bool] = False  # chosen for each query head instead

    def install(self, model: PreTrainedModel) -> None:
        """Nothing but what lets another attention be put in."""
        rest(model)

    @contextmanager
    def applied(self, model: PreTrainedModel, budget: Budget | None) -> Iterator[Counting]:
        """Attention over the heaviest keys in every layer, whole texts at a time.

        Raises:
            ValueError: no share; at a call, the input is padded, or the model has a sliding window
                or a soft-cap.
        """
        self.check(self.settings, budget, "budget")
        near, each_head = (self.settings.window, self.settings.sinks), self.each_head
        layers: dict[int, tuple[int, int]] = {}  # pairs kept and routings

        def attention(module: nn.Module, query: Tensor, key: Tensor, value: Tensor,
                      attention_mask: Tensor | None, scaling: float | None = None,
                      **rest: Any) -> tuple[Tensor, None]:  # fmt: skip
            scale = plain_scale(self.name, query, key, attention_mask, scaling, rest)
            kept = heaviest(query, key, scale, budget, *near, each_head)
            layers[int(module.layer_idx)] = int(kept.sum()), kept.shape[1]  # type: ignore[arg-type]
            return attend(query, key, value, scale, kept=kept).transpose(1, 2).contiguous(), None

        def counted(seen: Pass) -> PairCounts:
            return PairCounts.total(seen.keeping(*each, *near) for each in layers.values())

        with watched(model) as last, attending(model, IMPLEMENTATION, attention):
            yield lambda: counted(last())

    def describe(self, budget: Budget | None) -> dict[str, Any]:
        """The window and the sinks."""
        return columns(window=self.settings.window, sinks=self.settings.sinks)

    @classmethod
    def check(cls, settings: Any, budget: Budget | None, path: str) -> None:
        """A share."""
        check_share(cls.name, budget, path, groups=False)


@torch.no_grad()
def heaviest(query: Tensor, key: Tensor, scale: float, share: float, window: int, sinks: int,
             each_head: bool = False) -> Tensor:  # fmt: skip
    """(B, Hk, T, T) bool: near pairs, and each query's distant keys of the greatest weight, by the
    mean over the query heads of a key head; (B, H, T, T) of ``each_head``: by its own weights.

    Args:
        query: (B, H, T, D); key: (B, Hk, T, D).
    """
    tokens = query.shape[2]
    position = torch.arange(tokens, device=query.device)
    distance = position[:, None] - position
    near = (distance >= 0) & ((distance < window) | (position < sinks))
    grouped = query.float().unflatten(1, (key.shape[1], -1))
    logits = grouped @ key.float().unsqueeze(2).transpose(-1, -2) * scale
    if each_head:
        weights = logits.flatten(1, 2)  # softmax would keep their order
    else:
        weights = logits.masked_fill_(distance < 0, -torch.inf).softmax(-1).mean(2)
    kept = near.repeat(*weights.shape[:2], 1, 1)
    # Row by row, as many as each may keep: a topk of all rows takes twice as long or more.
    for i in range(window + sinks, tokens):
        distant = weights[:, :, i, sinks : i - window + 1]
        best = distant.topk(round(share * distant.shape[-1]), sorted=False).indices
        kept[:, :, i].scatter_(-1, best + sinks, True)
    return kept


METHOD = Oracle
