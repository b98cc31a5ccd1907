"""Tokens of a cache while the window holds them all.

Nobody asks for their groups yet, and every query sees every key: torch's own attention is all it
takes, as in the pretrained model. Once the window leaves a token behind, one call routes them all.

Shape suffixes: B batch, H query heads, Hk key heads, M new tokens, T tokens so far, E model
dimension, D head dimension.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from focus.attention.rule import Rule


class Unrouted:
    """The first tokens of one layer, from their hidden states (B, M, E), keys and values
    (B, Hk, M, D); they may belong to a graph or be used again by the model."""

    def __init__(self, rule: Rule, hidden: Tensor, key: Tensor, value: Tensor) -> None:
        self.rule = rule
        self._hidden = [hidden.detach().clone()]
        self.key, self.value = key.detach().clone(), value.detach().clone()

    @property
    def seen(self) -> int:
        """Tokens so far."""
        return self.key.shape[2]

    @property
    def hidden(self) -> Tensor:
        """All hidden states, (B, T, E)."""
        if len(self._hidden) > 1:
            self._hidden = [torch.cat(self._hidden, 1)]
        return self._hidden[0]

    def attend(self, query: Tensor, hidden: Tensor, key: Tensor, value: Tensor,
               scale: float) -> Tensor:  # fmt: skip
        """Appends one token and attends from its query (B, H, 1, D) to all so far; where it fails,
        they are as before."""
        keys, values = torch.cat([self.key, key], 2), torch.cat([self.value, value], 2)
        out = scaled_dot_product_attention(query, keys, values, scale=scale, enable_gqa=True)
        self._hidden.append(hidden.clone())
        self.key, self.value = keys, values
        return out

    def crop(self, seen: int) -> None:
        """Forgets all but the first ``seen`` tokens."""
        self._hidden = [self.hidden[:, :seen]]
        self.key, self.value = self.key[:, :, :seen], self.value[:, :, :seen]

    def select(self, index: Tensor) -> None:
        """Keeps the sequences named, in that order; one may be named several times."""
        self._hidden, self.key, self.value = (
            [_rows(self.hidden, index)], _rows(self.key, index), _rows(self.value, index)
        )  # fmt: skip


def _rows(tensor: Tensor, index: Tensor) -> Tensor:
    return tensor.index_select(0, index.to(tensor.device))
