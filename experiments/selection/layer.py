"""One attention layer of one pass, and what can be kept of its pairs by scores.

Shape suffixes: B batch, H query heads, Hk key heads, Hm heads that choose, M new tokens, T tokens
so far, D head dimension, N blocks of keys.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from experiments.methods.base import Near
from focus.attention.checks import for_query_heads


@dataclass(frozen=True)
class Layer:
    """One attention layer of one forward pass.

    Attributes:
        index: of the layer.
        query: (B, H, M, D); key, value: (B, Hk, T, D).
        rows: (M,) positions of the queries.
        scale: factor of the logits.
        window, sinks: by which pairs are distant.
    """

    index: int
    query: Tensor
    key: Tensor
    value: Tensor
    rows: Tensor
    scale: float
    window: int
    sinks: int

    @classmethod
    def of(cls, module: nn.Module, query: Tensor, key: Tensor, value: Tensor, scale: float,
           near: Near) -> Layer:  # fmt: skip
        """What an attention function is given, its queries the last of the tokens."""
        tokens = key.shape[2]
        rows = torch.arange(tokens - query.shape[2], tokens, device=key.device)
        index = int(module.layer_idx)  # type: ignore[arg-type]
        return cls(index, query, key, value, rows, scale, near.window, near.sinks)

    @property
    def near(self) -> Tensor:
        """(M, T) bool: pairs in the window or with a sink."""
        position = torch.arange(self.key.shape[2], device=self.key.device)
        distance = self.rows[:, None] - position
        return (distance >= 0) & ((distance < self.window) | (position < self.sinks))

    @property
    def distant(self) -> Tensor:
        """(M, T) bool: causal pairs that are not near."""
        position = torch.arange(self.key.shape[2], device=self.key.device)
        return (self.rows[:, None] - position >= self.window) & (position >= self.sinks)

    @property
    def keys(self) -> Tensor:
        """(B, H, T, D) float32: of each query head."""
        return for_query_heads(self.key, self.query.shape[1]).float()

    def logits(self) -> Tensor:
        """(B, H, M, T) float32, later keys -inf."""
        found = self.query.float() @ self.keys.transpose(-1, -2) * self.scale
        position = torch.arange(self.key.shape[2], device=self.key.device)
        return found.masked_fill_(position > self.rows[:, None], -torch.inf)

    def quotas(self, share: Tensor | float, size: int = 1) -> Tensor:
        """(..., M) int64: how many blocks of ``size`` keys each query may keep, so that all queries
        up to any of them together keep that share of their distant pairs: what rounding takes from
        one query, a later one gets.

        Args:
            share: one, or (...,) of them.
        """
        each = torch.as_tensor(share, dtype=torch.float64, device=self.key.device)[..., None] / size
        last = (self.rows + 1 - self.window - self.sinks).clamp(min=0)
        upto = (each * (last * (last + 1) // 2) + 1e-9).floor()
        before = (each * (last * (last - 1) // 2) + 1e-9).floor()
        return (upto - before).long()

    def room(self, keys: int) -> Tensor:
        """(M,) int64: how many distant keys each query may have beside its near ones; all of them,
        where it has no more than ``keys`` keys together."""
        return (keys - self.near.sum(-1)).minimum(self.distant.sum(-1))


def heaviest(layer: Layer, scores: Tensor, quotas: Tensor) -> Tensor:
    """(B, Hm, M, T) bool: near pairs, and of each query the distant keys that it scores highest.

    Args:
        scores: (B, Hm, M, T).
        quotas: (M,) or (Hm, M), how many.
    """
    kept = layer.near.repeat(*scores.shape[:2], 1, 1)
    most = quotas.reshape(-1, quotas.shape[-1]).amax(0).tolist()
    # Row by row, as many as each may keep: a topk of all rows takes twice as long or more.
    for row, position in enumerate(layer.rows.tolist()):
        if not most[row]:
            continue
        distant = scores[:, :, row, layer.sinks : position - layer.window + 1]
        best = distant.topk(most[row]).indices + layer.sinks
        rank = torch.arange(most[row], device=scores.device)
        allowed = (rank < quotas[..., row, None]).expand(best.shape)
        kept[:, :, row].scatter_(-1, best, allowed)
    return kept


def best_blocks(layer: Layer, scores: Tensor, share: float, size: int) -> Tensor:
    """(B, Hm, M, T) bool: near pairs, and of each query the blocks of keys that it scores highest.

    A block that reaches into the window or the sinks counts as a whole one.

    Args:
        scores: (B, Hm, M, N).
    """
    first = torch.arange(scores.shape[-1], device=scores.device) * size
    eligible = (first <= layer.rows[:, None] - layer.window) & (first + size > layer.sinks)
    quotas = layer.quotas(share, size).minimum(eligible.sum(-1))
    most = int(quotas.max())
    best = scores.masked_fill(~eligible, -torch.inf).topk(most).indices
    allowed = torch.arange(most, device=scores.device) < quotas[:, None]
    chosen = torch.zeros_like(scores, dtype=torch.bool)
    chosen.scatter_(-1, best, allowed.expand(best.shape))
    wide = chosen.repeat_interleave(size, -1)[..., : layer.key.shape[2]]
    return wide.logical_and_(layer.distant).logical_or_(layer.near)


def in_blocks(keys: Tensor, size: int) -> Tensor:
    """(B, H, N, size, D) of keys (B, H, T, D); the last key fills the last block."""
    missing = -keys.shape[2] % size
    filled = torch.cat([keys, keys[:, :, -1:].expand(-1, -1, missing, -1)], 2)
    return filled.unflatten(2, (-1, size))
