"""Group calls on CPU where queries and keys of a group are different lists: a staircase.

Query n of a list sees its first ``stairs[n]`` keys. Queries go in chunks: the keys that the chunk's
first query sees form a plain rectangle, those up to its last query's stair a small masked one.

Shape suffixes: H query heads and Hk key heads of the routing, T tokens, D head dimension, K groups,
M queries of a chunk, N keys of a list.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad

from focus.attention.groups import Routing, Saved, gather, put_rows, with_codes
from focus.attention.kernels import cpu_backward, cpu_forward, mask_dtype
from focus.attention.plan import Lists

RECTANGLE = 2048  # keys from which a call without a mask pays for itself


def stair_rows(queries: int) -> int:
    """Queries of a call: many where the triangle above its stairs is a small share of a list. From
    192 on, the kernel takes 64 instead of 32 of them at a time and is a seventh faster."""
    return 192 if queries >= 1024 else 64


@dataclass(frozen=True)
class StairList:
    """One list: positions of its queries (M,) and keys (N,), and their rows.

    query (1, H, M, D'); key, value (1, Hk, N, D'), with code dimensions where pairs may repeat;
    stairs (M,); first (M,) or None as in the lists.
    """

    query_index: Tensor
    key_index: Tensor
    query: Tensor
    key: Tensor
    value: Tensor
    stairs: Tensor
    first: Tensor | None


_Part = tuple[slice, Tensor | None]  # some keys, and the mask over them


def stairs_forward(routing: Routing, lists: Lists, out: Tensor, lse: Tensor) -> None:
    """Attention to the earlier keys of each group: written to out (H, T, D) and lse (H, T) where
    every query is in one list, otherwise merged into what they hold."""
    for own in _lists(routing, lists):
        list_forward(routing, own, out, lse, lists.single)


def list_forward(routing: Routing, own: StairList, out: Tensor, lse: Tensor,
                 single: bool) -> None:  # fmt: skip
    """One list of :func:`stairs_forward`; ``single``: written, not merged."""
    dim = out.shape[-1]
    empty = _empty(routing, own)
    some_empty = bool(empty.any())
    for rows, parts in _chunks(routing, own):
        index = own.query_index[rows]
        if not parts and single:
            out.index_fill_(1, index, 0.0)
            lse.index_fill_(1, index, -torch.inf)
        if not parts:
            continue
        part, part_lse = _chunk_forward(routing, own, rows, parts)
        if some_empty:
            part_lse = part_lse.masked_fill(empty[rows], -torch.inf)
        put_rows(out, lse, index, part[..., :dim], part_lse, single)


def _chunk_forward(routing: Routing, own: StairList, rows: slice,
                   parts: list[_Part]) -> tuple[Tensor, Tensor]:  # fmt: skip
    """out (H, M, D') and lse (H, M) of one chunk's queries over all its keys."""
    out, lse = torch.empty(0), torch.empty(0)
    for keys, mask in parts:
        part, part_lse = cpu_forward(
            own.query[:, :, rows], own.key[:, :, keys], own.value[:, :, keys], routing.scale,
            mask=mask,
        )  # fmt: skip
        if keys.start == 0:
            out, lse = part[0], part_lse[0]
            continue
        # A query that sees the rectangle alone: the kernel calls its empty row's lse 0.
        part_lse = part_lse[0].masked_fill_(own.stairs[rows] <= keys.start, -torch.inf)
        new_lse = torch.logaddexp(lse, part_lse)
        weight = torch.exp(part_lse - new_lse).unsqueeze(-1)
        out = out.to(lse.dtype).lerp_(part[0].to(lse.dtype), weight).to(part.dtype)
        lse = new_lse
    return out, lse


def stairs_backward(routing: Routing, lists: Lists, saved: Saved) -> None:
    """Gradients of :func:`stairs_forward` under the merged out and lse, added to the sums."""
    dim = routing.query.shape[-1]
    for own in _lists(routing, lists):
        d_query, d_key, d_value = list_backward(routing, own, saved)
        saved.d_query.index_add_(1, own.query_index, d_query[..., :dim])
        saved.d_key.index_add_(1, own.key_index, d_key[..., :dim])
        saved.d_value.index_add_(1, own.key_index, d_value[..., :dim])


def list_backward(routing: Routing, own: StairList, saved: Saved) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of one list's own rows: d_query (H, M, D'), d_key and d_value (Hk, N, D')."""
    width = own.query.shape[-1] - saved.out.shape[-1]
    grad, out = (
        pad(gather(x, own.query_index), (0, width)).unsqueeze(0).to(own.query.dtype)
        for x in (saved.grad, saved.out)
    )
    lse = saved.lse.index_select(1, own.query_index)
    lse.masked_fill_(_empty(routing, own), torch.inf)
    d_query, d_key, d_value = (torch.zeros_like(x) for x in (own.query, own.key, own.value))
    for rows, (keys, mask) in ((rows, part) for rows, parts in _chunks(routing, own)
                               for part in parts):  # fmt: skip
        found = cpu_backward(
            grad[:, :, rows], own.query[:, :, rows], own.key[:, :, keys],
            own.value[:, :, keys], out[:, :, rows], lse[None, :, rows], routing.scale,
            mask=mask,
        )  # fmt: skip
        d_query[:, :, rows] += found[0]
        d_key[:, :, keys] += found[1]
        d_value[:, :, keys] += found[2]
    return d_query[0], d_key[0], d_value[0]


def _lists(routing: Routing, lists: Lists) -> Iterator[StairList]:
    all_stairs = lists.stairs if lists.stairs is not None else lists.key_index
    for group in range(lists.count):
        n = routing.number * lists.count + group
        queries = slice(lists.query_offsets[n], lists.query_offsets[n + 1])
        keys = slice(lists.key_offsets[n], lists.key_offsets[n + 1])
        if queries.start == queries.stop:
            continue
        query_index = lists.query_index[queries] - routing.base
        key_index = lists.key_index[keys] - routing.base
        query, key, value = (
            gather(x, index) for x, index in ((routing.query, query_index),
                                              (routing.key, key_index), (routing.value, key_index))
        )  # fmt: skip
        if lists.repeats and group:
            own_codes = lists.query_codes[query_index + routing.base]
            codes = lists.key_codes[key_index + routing.base]
            query = with_codes(query, own_codes, group, -1.0, routing.scale)
            key, value = with_codes(key, codes, group, 1.0, routing.scale), _widen(value, group)
        yield StairList(
            query_index, key_index, query.unsqueeze(0), key.unsqueeze(0), value.unsqueeze(0),
            all_stairs[queries], None if lists.first is None else lists.first[queries],
        )  # fmt: skip


def _chunks(routing: Routing, own: StairList) -> Iterator[tuple[slice, list[_Part]]]:
    """For each chunk of queries its keys, from 0 on, in one part or in two, a rectangle first."""
    total, keys = own.query_index.shape[0], own.key_index.shape[0]
    height = stair_rows(total)
    dtype = mask_dtype(routing.query.dtype)
    ends = [min(start + height, total) for start in range(0, total, height)]
    lows, highs = own.stairs[::height].tolist(), own.stairs[[end - 1 for end in ends]].tolist()
    column = torch.arange(keys, dtype=own.stairs.dtype)
    widest = max((b - (a if a >= RECTANGLE else 0) for a, b in zip(lows, highs, strict=True)))
    # Zero between chunks: only the columns between a chunk's stairs are written.
    scratch = torch.zeros(min(height, total), widest, dtype=dtype)
    for n, (low, high) in enumerate(zip(lows, highs, strict=True)):
        rows = slice(n * height, ends[n])
        if own.first is not None and high:
            yield rows, [(slice(0, high), _mask_with_sinks(routing, own, rows, high, dtype))]
            continue
        start = low if low >= RECTANGLE else 0
        parts: list[_Part] = [(slice(0, low), None)] if start else []
        mask = scratch[: ends[n] - rows.start, : high - start]
        tail = mask[:, low - start :]
        tail.masked_fill_(column[low:high] >= own.stairs[rows, None], -torch.inf)
        yield rows, parts + ([(slice(start, high), mask)] if high > start else [])
        tail.zero_()


def _mask_with_sinks(routing: Routing, own: StairList, rows: slice, high: int,
                     dtype: torch.dtype) -> Tensor:  # fmt: skip
    """Additive mask that leaves a query's sinks to the first of its lists."""
    hidden = torch.arange(high, dtype=own.stairs.dtype) >= own.stairs[rows, None]
    if own.first is not None:
        sinks = own.key_index[:high] < routing.start + routing.sinks
        hidden |= sinks & ~own.first[rows, None]
    return torch.zeros(hidden.shape, dtype=dtype).masked_fill_(hidden, -torch.inf)


def _empty(routing: Routing, own: StairList) -> Tensor:
    """(M,) queries that see no key of the list."""
    if own.first is None:
        return own.stairs == 0
    sinks = int((own.key_index < routing.start + routing.sinks).sum())
    return (own.stairs == 0) | (~own.first & (own.stairs <= sinks))


def _widen(value: Tensor, groups: int) -> Tensor:
    return pad(value, (0, -(-groups // 8) * 8))
