"""Pasts of random tensors that tests of decoding share, and the definition's answer to them."""

from __future__ import annotations

import itertools

import torch
from torch import Tensor

from focus.attention.decode import Counting, decode_attention
from focus.attention.dense import attend, pairs_kept
from focus.attention.extra import distinct
from focus.attention.past import Past
from focus.attention.rule import Rule

DIM = 8


def some_groups(shape: tuple[int, int, int], groups: int, count: int,
                seed: int = 0) -> Tensor:  # fmt: skip
    """(B, R, T, K) bool with ``count`` groups a token."""
    generator = torch.Generator().manual_seed(seed)
    scores = torch.randn(*shape, groups, generator=generator)
    chosen = scores.topk(count, -1).indices
    return torch.zeros_like(scores, dtype=torch.bool).scatter_(-1, chosen, True)


class Case:
    """Random tensors of one sequence batch, and the definition's answer."""

    def __init__(self, rule: Rule, tokens: int = 60, batch: int = 2, heads: int = 4,
                 key_heads: int = 2, routings: int = 1, padded: bool = False,
                 dtype: torch.dtype = torch.float64, dim: int = DIM,
                 extra: int = 0) -> None:  # fmt: skip
        generator = torch.Generator().manual_seed(1)

        def draw(*shape: int) -> Tensor:
            return torch.randn(*shape, generator=generator, dtype=torch.float64).to(dtype)

        self.rule, self.tokens = rule, tokens
        self.query = draw(batch, heads, tokens, dim)
        self.key, self.value = (draw(batch, key_heads, tokens, dim) for _ in range(2))
        shape = (batch, routings, tokens)
        self.query_groups = some_groups(shape, rule.groups, rule.query_groups)
        shape = (batch, min(routings, key_heads), tokens)
        self.key_groups = some_groups(shape, rule.groups, rule.key_groups, seed=5)
        self.real: Tensor | None = None
        if padded:
            self.real = torch.ones(batch, tokens, dtype=torch.bool)
            self.real[0, :7] = False
            self.real[0, 30:33] = False
        self.extra: Tensor | None = None
        if extra:
            place = torch.rand(batch, tokens, extra, generator=generator)
            named = (place * (torch.arange(tokens)[:, None] + 1)).long()
            self.extra = distinct(named, 1, 0, self.real)  # earlier tokens, each once

    def kept(self, rows: slice = slice(None)) -> Tensor:
        query, key = self.query_groups, self.key_groups
        if self.real is not None:
            own = self.real[:, None, :, None]
            query, key = query & own, key & own
        window, sinks = self.rule.window, self.rule.sinks
        kept = pairs_kept(query, key, window, sinks, self.real, self.extra, rows)
        if self.rule.limit is not None:
            position = torch.arange(self.tokens)
            kept = kept & (position[rows, None] - position < self.rule.limit)
        return kept

    def expected(self, softcap: float | None = None, rows: slice = slice(None)) -> Tensor:
        query, scale = self.query[:, :, rows], self.query.shape[-1] ** -0.5
        return attend(query, self.key, self.value, scale, kept=self.kept(rows), softcap=softcap)

    def step(self, past: Past, start: int, stop: int, softcap: float | None = None,
             rows: Tensor | None = None) -> tuple[Tensor, int]:  # fmt: skip
        """Output of tokens start..stop-1, and the kept pairs that the call counted."""
        out, count = self.call(past, start, stop, softcap, rows)
        _, near, _, distant_kept = count()
        return out, near + distant_kept

    def call(self, past: Past, start: int, stop: int, softcap: float | None = None,
             rows: Tensor | None = None) -> tuple[Tensor, Counting]:  # fmt: skip
        """Output of tokens start..stop-1, and what counts the pairs of the call."""
        own = slice(start, stop)
        tensors = [x[:, :, own] for x in (self.query, self.key, self.value)]
        groups = [x[:, :, own] for x in (self.query_groups, self.key_groups)]
        real = None if self.real is None else self.real[:, own]
        extra = None if self.extra is None else self.extra[:, own]
        if rows is not None:
            tensors, groups = [x[rows] for x in tensors], [x[rows] for x in groups]
            real = None if real is None else real[rows]
            extra = None if extra is None else extra[rows]
        return decode_attention(*tensors, *groups, past, real=real, softcap=softcap,
                                extra_keys=extra)  # fmt: skip

    def run(self, chunks: list[int], softcap: float | None = None) -> tuple[Tensor, int, Past]:
        past, outs, total = Past(self.rule), [], 0
        start = 0
        for count in chunks:
            out, kept = self.step(past, start, start + count, softcap)
            outs.append(out)
            total += kept
            start += count
        return torch.cat(outs, 2), total, past


STEPS = [24] + [1] * 36
CHUNKS = [20, 1, 1, 17, 1, 20]
GRID = [
    Rule(window, sinks, limit, *groups)
    for window, sinks, limit, groups in itertools.product(
        (1, 9), (0, 3), (None, 20), ((4, 1, 1), (4, 2, 2), (5, 2, 1))
    )
]
# Of the grid so many that every two settings meet once: for layouts, on which no rule depends.
PAIRS = [
    Rule(1, 0, None, 4, 1, 1), Rule(9, 3, 20, 4, 1, 1), Rule(1, 3, 20, 4, 2, 2),
    Rule(9, 0, None, 4, 2, 2), Rule(9, 0, 20, 5, 2, 1), Rule(1, 3, None, 5, 2, 1),
]  # fmt: skip
