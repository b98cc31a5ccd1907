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
    """Queries of a call: many where the triangle above its stairs is a small share of a list."""
    return 192 if queries >= 2048 else 64


@dataclass(frozen=True)
class _List:
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


_Call = tuple[slice, slice, Tensor | None]  # some queries, some keys, their mask


def stairs_forward(routing: Routing, lists: Lists, out: Tensor, lse: Tensor) -> None:
    """Attention to the earlier keys of each group: written to out (H, T, D) and lse (H, T) where
    every query is in one list, otherwise merged into what they hold."""
    dim = routing.query.shape[-1]
    for own in _lists(routing, lists):
        part = torch.zeros_like(own.query[0, ..., :dim])
        part_lse = torch.full(part.shape[:2], -torch.inf, dtype=lse.dtype)
        for rows, keys, mask in _calls(routing, own):
            found, found_lse = cpu_forward(
                own.query[:, :, rows], own.key[:, :, keys], own.value[:, :, keys], routing.scale,
                mask=mask,
            )  # fmt: skip
            if keys.start == 0:
                part[:, rows], part_lse[:, rows] = found[0, ..., :dim], found_lse[0]
            else:
                # A query that sees the rectangle alone: the kernel calls its empty row's lse 0.
                found_lse = found_lse[0].masked_fill_(own.stairs[rows] <= keys.start, -torch.inf)
                _merge(part[:, rows], part_lse[:, rows], found[0, ..., :dim], found_lse)
        part_lse.masked_fill_(_empty(routing, own), -torch.inf)
        put_rows(out, lse, own.query_index, part, part_lse, lists.single)


def _merge(total: Tensor, total_lse: Tensor, part: Tensor, part_lse: Tensor) -> None:
    new_lse = torch.logaddexp(total_lse, part_lse)
    weight = torch.exp(part_lse - new_lse).unsqueeze(-1)
    total.copy_(total.to(new_lse.dtype).lerp_(part.to(new_lse.dtype), weight))
    total_lse.copy_(new_lse)


def stairs_backward(routing: Routing, lists: Lists, saved: Saved) -> None:
    """Gradients of :func:`stairs_forward` under the merged out and lse, added to the sums."""
    dim = routing.query.shape[-1]
    for own in _lists(routing, lists):
        width = own.query.shape[-1] - dim
        grad, out = (
            pad(gather(x, own.query_index), (0, width)).unsqueeze(0)
            for x in (saved.grad, saved.out)
        )
        lse = saved.lse.index_select(1, own.query_index)
        lse.masked_fill_(_empty(routing, own), torch.inf)
        d_query, d_key, d_value = (torch.zeros_like(x) for x in (own.query, own.key, own.value))
        for rows, keys, mask in _calls(routing, own):
            parts = cpu_backward(
                grad[:, :, rows], own.query[:, :, rows], own.key[:, :, keys],
                own.value[:, :, keys], out[:, :, rows], lse[None, :, rows], routing.scale,
                mask=mask,
            )  # fmt: skip
            d_query[:, :, rows] += parts[0]
            d_key[:, :, keys] += parts[1]
            d_value[:, :, keys] += parts[2]
        saved.d_query.index_add_(1, own.query_index, d_query[0, ..., :dim])
        saved.d_key.index_add_(1, own.key_index, d_key[0, ..., :dim])
        saved.d_value.index_add_(1, own.key_index, d_value[0, ..., :dim])


def _lists(routing: Routing, lists: Lists) -> Iterator[_List]:
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
        yield _List(
            query_index, key_index, query.unsqueeze(0), key.unsqueeze(0), value.unsqueeze(0),
            all_stairs[queries], None if lists.first is None else lists.first[queries],
        )  # fmt: skip


def _calls(routing: Routing, own: _List) -> Iterator[_Call]:
    """Calls of one list: for each chunk of queries the keys from 0 on, or a rectangle first."""
    total, keys = own.query_index.shape[0], own.key_index.shape[0]
    height = stair_rows(total)
    dtype = mask_dtype(routing.query.dtype)
    ends = [min(start + height, total) for start in range(0, total, height)]
    lows, highs = own.stairs[::height].tolist(), own.stairs[[end - 1 for end in ends]].tolist()
    column = torch.arange(keys, dtype=own.stairs.dtype)
    # Kept at zero between calls: only the columns between a chunk's stairs are written.
    scratch = torch.zeros(min(height, total), min(keys, RECTANGLE + height), dtype=dtype)
    for n, (low, high) in enumerate(zip(lows, highs, strict=True)):
        rows = slice(n * height, ends[n])
        if high == 0:
            continue
        if own.first is not None:
            yield rows, slice(0, high), _mask_with_sinks(routing, own, rows, high, dtype)
            continue
        start = 0 if low < RECTANGLE else low
        if start:
            yield rows, slice(0, low), None
        if high == start:
            continue
        if high - start > scratch.shape[1]:
            scratch = torch.zeros(scratch.shape[0], high - start, dtype=dtype)
        mask = scratch[: ends[n] - rows.start, : high - start]
        tail = mask[:, low - start :]
        tail.masked_fill_(column[low:high] >= own.stairs[rows, None], -torch.inf)
        yield rows, slice(start, high), mask
        tail.zero_()


def _mask_with_sinks(routing: Routing, own: _List, rows: slice, high: int,
                     dtype: torch.dtype) -> Tensor:  # fmt: skip
    """Additive mask that leaves a query's sinks to the first of its lists."""
    hidden = torch.arange(high, dtype=own.stairs.dtype) >= own.stairs[rows, None]
    if own.first is not None:
        sinks = own.key_index[:high] < routing.start + routing.sinks
        hidden |= sinks & ~own.first[rows, None]
    return torch.zeros(hidden.shape, dtype=dtype).masked_fill_(hidden, -torch.inf)


def _empty(routing: Routing, own: _List) -> Tensor:
    """(M,) queries that see no key of the list."""
    if own.first is None:
        return own.stairs == 0
    sinks = int((own.key_index < routing.start + routing.sinks).sum())
    return (own.stairs == 0) | (~own.first & (own.stairs <= sinks))


def _widen(value: Tensor, groups: int) -> Tensor:
    return pad(value, (0, -(-groups // 8) * 8))
