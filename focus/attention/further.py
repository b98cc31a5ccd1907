"""Further keys of single queries in a filed past: those that lie in pages the query does not read.

Shape suffixes: B batch, H query heads, R routings of queries (1, Hk or H), M queries, N further
keys, E of a query, D head dimension, K groups.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from focus.attention.groups import merge_rows
from focus.attention.pages import Page
from focus.attention.past import Past
from focus.attention.reads import Stretch


class FurtherKey(NamedTuple):
    """A token of a page that the query reads by itself, in the routings ``first:last`` of
    ``routings`` of one sequence."""

    sequence: int
    first: int
    last: int
    routings: int
    page: Page
    row: int

    def rows(self) -> tuple[Tensor, Tensor]:
        """Key and value, each (key heads of the page, 1, D)."""
        own = slice(self.row, self.row + 1)
        return self.page.key[:, own], self.page.value[:, own]


def find_extra(past: Past, chosen: list[list[list[int]]],
               extra: Tensor | None) -> list[FurtherKey]:  # fmt: skip
    """What one query reads beside its pages.

    Args:
        past: with the query's own token.
        chosen: groups of the query, of each sequence and routing.
        extra: (B, 1, E) positions, -1: none; or None.
    """
    found: list[FurtherKey] = []
    if extra is None or not past.paged:
        return found
    extra = _in_reach(extra, past)
    for b, row in enumerate(chosen):
        together = len(row) // len(past.pages[b])  # routings of queries for one of keys
        for r, pages in enumerate(past.pages[b]):
            for own, page, at in filter(None, pages.find(extra[b, 0])):
                first = r * together
                apart = [not set(own) & set(row[first + i]) for i in range(together)]
                for start, stop in _runs(apart):
                    found.append(FurtherKey(b, first + start, first + stop, len(row), page, at))
    return found


def _in_reach(extra: Tensor, past: Past) -> Tensor:
    """Without what the model's own window hides."""
    if past.rule.limit is None:
        return extra
    query = torch.arange(past.seen - extra.shape[1], past.seen, device=extra.device)
    return extra.masked_fill(query[:, None] - extra >= past.rule.limit, -1)


def _runs(flags: list[bool]) -> Iterator[tuple[int, int]]:
    """First and last + 1 of each run of what is true."""
    start = None
    for at, flag in enumerate([*flags, False]):
        if flag and start is None:
            start = at
        elif not flag and start is not None:
            yield start, at
            start = None


def chunk_extra(query: Tensor, groups: Tensor, extra: Tensor, past: Past, forward: Callable,
                out: Tensor, lse: Tensor, stretch: Stretch) -> None:  # fmt: skip
    """Merges what the last M queries read beside their pages into out (B, H, M, D) and lse
    (B, H, M).

    Args:
        query: (B, H, M, D); groups: (B, R, M, K); extra: (B, M, E).
        forward: attention under an additive mask, giving out and lse.
    """
    extra = _in_reach(extra, past)
    heads = query.shape[1] // groups.shape[1]
    for b, row in enumerate(groups):
        positions = extra[b].unique()
        for key_routing, pages in enumerate(past.pages[b]):
            found = pages.find(positions)
            own = [each for each in found if each is not None]
            if not own:
                continue
            alive = torch.tensor([each is not None for each in found], device=positions.device)
            named = (extra[b].unsqueeze(-1) == positions[alive]).any(1)
            key, value, joined = _gathered(own, groups.shape[-1])
            for r in range(len(row)):
                if past.key_routing(r, len(row)) != key_routing:
                    continue
                meets = row[r].float() @ joined.to(row.device).T > 0
                kept = named & ~meets
                rows = kept.any(-1).nonzero().flatten()
                if not len(rows):
                    continue
                mask = torch.zeros(len(rows), len(own), device=lse.device, dtype=lse.dtype)
                mask.masked_fill_(~kept[rows], -torch.inf)
                heads_of = slice(r * heads, (r + 1) * heads)
                part, part_lse = forward(
                    query[b, heads_of].index_select(1, rows).unsqueeze(0), key, value,
                    mask=mask[None, None],
                )  # fmt: skip
                merge_rows(out[b, heads_of], lse[b, heads_of], rows, part[0], part_lse[0])
                stretch.paged += int(kept.sum())
                stretch.keys += key.shape[1] * len(own)


def _gathered(found: list[tuple[tuple[int, ...], Page, int]],
              groups: int) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Key and value (1, h, N, D) and groups (N, K) float of tokens in pages."""
    key = torch.stack([page.key[:, row] for _, page, row in found], 1)
    value = torch.stack([page.value[:, row] for _, page, row in found], 1)
    joined = torch.zeros(len(found), groups)
    for n, (own, _, _) in enumerate(found):
        joined[n, list(own)] = 1.0
    return key.unsqueeze(0), value.unsqueeze(0), joined
