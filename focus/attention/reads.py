"""What a call over a past read: kept pairs for density, keys for traffic.

Shape suffixes: B batch, R routings, T tokens seen, M queries, N near keys.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from focus.density import PairCounts


@dataclass
class Stretch:
    """One stretch of queries, at positions ``start:stop`` of a past of ``stop`` tokens.

    near: kept pairs among sinks and recent tokens, or the additive mask to count
    them in; paged: kept pairs in pages; real (B, stop) or None; keys: keys times key heads read.
    """

    start: int
    stop: int
    near: int | Tensor
    paged: int
    keys: int
    real: Tensor | None


@dataclass
class Reads:
    """All stretches of a call; counted only when somebody asks."""

    batch: int
    routings: int
    window: int
    sinks: int
    limit: int | None
    key_bytes: int  # of one key and its value in one head
    stretches: list[Stretch] = field(default_factory=list)

    def bytes_read(self) -> int:
        """Bytes of the keys and values that the calls took in, once a call."""
        return sum(stretch.keys for stretch in self.stretches) * self.key_bytes

    def pair_counts(self) -> PairCounts:
        """Pairs of the call's queries with all tokens before them, summed over the routings."""
        totals = [self._count(stretch) for stretch in self.stretches]
        causal, near, near_kept, kept = (sum(column) for column in zip(*totals, strict=True))
        return PairCounts(causal, near_kept, causal - near, kept - near_kept)

    def _count(self, stretch: Stretch) -> tuple[int, int, int, int]:
        real = stretch.real
        if real is None:
            real = torch.ones(self.batch, stretch.stop, dtype=torch.bool)
        queries = torch.arange(stretch.start, stretch.stop, device=real.device)
        far = stretch.stop if self.limit is None else self.limit
        counts = []
        for window, limit in ((stretch.stop, stretch.stop), (self.window, stretch.stop),
                              (min(self.window, far), far)):  # fmt: skip
            sinks = real & (real.cumsum(1) <= self.sinks)
            pairs = _between(real, queries, 0, window) + _between(sinks, queries, window, limit)
            counts.append(int((pairs * real[:, queries]).sum()) * self.routings)
        near = stretch.near
        kept = int((near == 0).sum()) if isinstance(near, Tensor) else near
        return counts[0], counts[1], counts[2], kept + stretch.paged


def _between(token_BT: Tensor, queries: Tensor, low: int, high: int) -> Tensor:
    """(B, M): how many of the tokens lie low..high-1 positions back."""
    before = torch.nn.functional.pad(token_BT.long().cumsum(1), (1, 0))
    newest, oldest = (queries + 1 - low).clamp_min(0), (queries + 1 - high).clamp_min(0)
    return (before[:, newest] - before[:, oldest]).clamp_min(0)
