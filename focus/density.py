"""How many pairs a hard mask keeps, counted exactly without a T x T tensor.

Shape suffixes: B batch, Hm routings (1, key heads or query heads), T tokens, K groups, P distinct
patterns.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import torch
from torch import Tensor

from focus.attention.checks import for_query_heads, sink_tokens
from focus.attention.extra import distinct, needed

ROWS = 4096  # queries whose further keys are looked at together


class PairCounts(NamedTuple):
    """Causal pairs of real tokens, summed over batch and routings.

    ``near`` pairs are kept by the window or the sinks whatever the groups; ``distant`` pairs are
    all others, ``distant_kept`` those of them whose groups meet or whose key is a further one.
    """

    causal: int
    near: int
    distant: int
    distant_kept: int

    @classmethod
    def total(cls, counts: Iterable[PairCounts | None]) -> PairCounts:
        """All of them together, of several layers or calls; None, a layer without counts, adds
        nothing."""
        known = [each for each in counts if each is not None]
        return cls(*map(sum, zip(cls(0, 0, 0, 0), *known, strict=True)))

    @property
    def density(self) -> float:
        """Kept pairs over causal pairs; NaN where there are none, among padding alone."""
        return (self.near + self.distant_kept) / self.causal if self.causal else float("nan")

    @property
    def distant_density(self) -> float:
        """Kept share of the distant pairs; NaN where there are none."""
        return self.distant_kept / self.distant if self.distant else float("nan")


def count_pairs(
    membership: Tensor,
    key_membership: Tensor | None,
    window: int,
    sinks: int,
    real: Tensor | None = None,
    extra: Tensor | None = None,
    limit: int | None = None,
) -> PairCounts:
    """Counts the pairs of the hard mask in O(T * P) with P distinct memberships.

    Args:
        membership, key_membership, window, sinks, real, extra: as in
            :func:`focus.attention.dense.pairs_kept`; None: keys are routed as queries are.
        limit: tokens of the model's own sliding window, beyond which nothing is kept; None: none.
    """
    batch, routings, tokens, _ = membership.shape
    key_membership = membership if key_membership is None else key_membership
    key_membership = for_query_heads(key_membership, routings)
    device = membership.device
    if real is None:
        real = torch.ones(batch, tokens, dtype=torch.bool, device=device)
    far = tokens if limit is None else min(limit, tokens)
    is_sink = sink_tokens(real, batch, tokens, sinks, device)
    kept = 0
    if extra is not None:
        own = distinct(extra.to(device), window, sinks, real)
        position = torch.arange(tokens, device=device)
        own = own.masked_fill(position[:, None] - own >= far, -1)
        for start in range(0, tokens, ROWS):
            rows = slice(start, start + ROWS)
            kept += int(needed(membership[:, :, rows], key_membership, own[:, rows]).sum())
    for b in range(batch):
        for h in range(routings):
            kept += _meeting_pairs(membership[b, h], key_membership[b, h], real[b],
                                   real[b] & ~is_sink[b], min(window, far), far)  # fmt: skip
    found = pairs_by_place(real, window, sinks, limit)
    causal, near, distant = (each * routings for each in found)
    return PairCounts(causal, near, distant, kept)


def pairs_by_place(real_BT: Tensor, window: int, sinks: int, limit: int | None,
                   start: int = 0) -> tuple[int, int, int]:  # fmt: skip
    """Causal pairs of the queries from ``start`` on: all; kept by window or sinks, within the
    model's own ``limit``; and beyond window and sinks."""
    batch, tokens = real_BT.shape
    far = tokens if limit is None else min(limit, tokens)
    near = min(window, far)
    is_sink = sink_tokens(real_BT, batch, tokens, sinks, real_BT.device)

    def pairs(key_BT: Tensor, low: int, high: int) -> int:
        return int((_seen(key_BT.long(), low, high) * real_BT)[:, start:].sum())

    kept = pairs(real_BT, 0, near) + pairs(is_sink, near, far)
    return pairs(real_BT, 0, tokens), kept, pairs(real_BT & ~is_sink, window, tokens)


def _seen(keys: Tensor, low: int, high: int) -> Tensor:
    """Of each token, how many keys lie low..high - 1 tokens back; tokens are the last dimension."""
    total = torch.nn.functional.pad(keys.cumsum(-1), (1, 0))
    after = torch.arange(1, keys.shape[-1] + 1, device=keys.device)
    return total[..., (after - low).clamp_min(0)] - total[..., (after - high).clamp_min(0)]


def _meeting_pairs(query_TK: Tensor, key_TK: Tensor, is_query: Tensor, is_key: Tensor, low: int,
                   high: int) -> int:  # fmt: skip
    if low >= high:
        return 0
    query_patterns, query_of = _patterns(query_TK)
    key_patterns, key_of = _patterns(key_TK)
    meets = query_patterns.float() @ key_patterns.float().T > 0
    # Keys of each pattern seen so far; int64 exactly, so the count has no rounding.
    own = torch.nn.functional.one_hot(key_of, len(key_patterns)) * is_key[:, None]
    allowed = meets[query_of] & is_query[:, None]
    return int((_seen(own.T, low, high).T * allowed).sum())


def _patterns(groups_TK: Tensor) -> tuple[Tensor, Tensor]:
    """The distinct rows (P, K), and which of them each token has (T,)."""
    which = torch.zeros(len(groups_TK), dtype=torch.int64, device=groups_TK.device)
    for part in groups_TK.split(31, dim=1):  # as numbers: torch sorts rows far more slowly
        bits = 2 ** torch.arange(part.shape[1], device=part.device)
        number = which * 2**31 + (part * bits).sum(1)
        which = torch.unique(number, return_inverse=True)[1]
    patterns = groups_TK.new_empty(int(which.max()) + 1, groups_TK.shape[1])
    patterns[which] = groups_TK
    return patterns, which
