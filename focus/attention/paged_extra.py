"""Further keys of single queries in a filed past: those that lie in pages the query does not read.

Shape suffixes: B batch, H query heads, R routings of queries (1, Hk or H), M queries, E further
keys of a query, D head dimension, K groups.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from focus.attention.checks import for_query_heads
from focus.attention.groups import merge_rows
from focus.attention.pages import Page
from focus.attention.past import Past
from focus.attention.reads import Stretch


class PagedKey(NamedTuple):
    """A token of a page that the query reads by itself, in the routings ``first:last`` of
    ``routings`` of one sequence."""

    sequence: int
    first: int
    last: int
    routings: int
    page: Page
    row: int


def find_extra(past: Past, chosen: list[list[list[int]]],
               extra: Tensor | None) -> list[PagedKey]:  # fmt: skip
    """What one query reads beside its pages.

    Args:
        past: with the query's own token.
        chosen: groups of the query, of each sequence and routing.
        extra: (B, 1, E) positions, -1: none; or None.
    """
    found: list[PagedKey] = []
    if extra is None or not past.paged:
        return found
    positions = _in_reach(extra, past)[:, 0].tolist()
    for b, row in enumerate(chosen):
        together = len(row) // len(past.pages[b])  # routings of queries for one of keys
        for r, pages in enumerate(past.pages[b]):
            first = r * together
            groups = row[first : first + together]
            for own, page, at in pages.find(positions[b]):
                shut = set(own)
                apart = [shut.isdisjoint(each) for each in groups]
                for start, stop in ((0, together),) if all(apart) else _runs(apart):
                    found.append(PagedKey(b, first + start, first + stop, len(row), page, at))
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


def chunk_extra(query: Tensor, groups: Tensor, extra: Tensor, past: Past, scale: float,
                softcap: float | None, out: Tensor, lse: Tensor,
                stretch: Stretch) -> None:  # fmt: skip
    """Merges what the last M queries read beside their pages into out (B, H, M, D) and lse
    (B, H, M).

    Args:
        query: (B, H, M, D); groups: (B, R, M, K); extra: (B, M, E).
        scale, softcap: of the logits.
    """
    extra = _in_reach(extra, past)
    for b, routings in enumerate(past.pages):
        heads, together = query.shape[1] // len(routings), groups.shape[1] // len(routings)
        for r, pages in enumerate(routings):
            found = pages.gather(extra[b].flatten())
            if found is None:
                continue
            own = slice(r * heads, (r + 1) * heads)
            part, part_lse, kept = _attended(
                query[b, own], groups[b, r * together : (r + 1) * together],
                [each.unflatten(-1 if each.dim() == 1 else -2, extra[b].shape) for each in found],
                scale, softcap,
            )  # fmt: skip
            rows = kept.flatten(2).any(2).any(0).nonzero().flatten()
            if len(rows):
                merge_rows(out[b, own], lse[b, own], rows, part[:, rows], part_lse[:, rows])
            stretch.paged += int(kept.sum())
            stretch.keys += len(found[0]) * int(found[3].sum())


def _attended(query_HMD: Tensor, groups_RMK: Tensor, found: list[Tensor], scale: float,
              softcap: float | None) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Out (H, M, D) and lse (H, M) of queries over single keys of each, and which count, (R, M, E);
    found: as :meth:`Pages.gather` gives it, for (M, E) positions."""
    key, value, joined, there = found
    wide = torch.promote_types(query_HMD.dtype, torch.float32)
    kept = ~(groups_RMK.unsqueeze(2) & joined).any(-1) & there
    query = query_HMD.to(wide).unflatten(0, (len(key), -1))
    logits = torch.einsum("hgmd,hmed->hgme", query, key.to(wide)).flatten(0, 1) * scale
    if softcap is not None:
        logits = softcap * torch.tanh(logits / softcap)
    logits = logits.masked_fill(~for_query_heads(kept[None], len(logits))[0], -torch.inf)
    lse = torch.logsumexp(logits, -1)
    weight = torch.exp(logits - lse.masked_fill(torch.isneginf(lse), 0.0).unsqueeze(-1))
    weight = weight.unflatten(0, (len(key), -1))
    return torch.einsum("hgme,hmed->hgmd", weight, value.to(wide)).flatten(0, 1), lse, kept
