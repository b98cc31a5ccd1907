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

from focus.attention.groups import Routing, Saved, gather, merge_rows, with_codes
from focus.attention.kernels import cpu_backward, cpu_forward, mask_dtype
from focus.attention.plan import Lists

RECTANGLE = 2048  # keys from which a call without a mask pays for itself


def stair_rows(queries: int) -> int:
    """Queries of a call: many where the triangle above its stairs is a small share of a list."""
    return 192 if queries >= 2048 else 64


@dataclass(frozen=True)
class _List:
    """One list: positions of its queries and keys, and its keys and values, (1, Hk, N, D')."""

    group: int
    query_index: Tensor
    key_index: Tensor
    stairs: Tensor
    first: Tensor | None
    key: Tensor
    value: Tensor


@dataclass(frozen=True)
class _Part:
    """One call: queries (1, H, M, D'), some of the list's keys, and the queries that see none."""

    index: Tensor
    query: Tensor
    keys: slice
    mask: Tensor | None
    empty: Tensor | None


def stairs_forward(routing: Routing, lists: Lists, out: Tensor, lse: Tensor) -> None:
    """Attention to the earlier keys of each group, merged into out (H, T, D) and lse (H, T)."""
    dim = routing.query.shape[-1]
    for own in _lists(routing, lists):
        for call in _parts(routing, lists, own):
            part, part_lse = cpu_forward(
                call.query, own.key[:, :, call.keys], own.value[:, :, call.keys], routing.scale,
                mask=call.mask,
            )  # fmt: skip
            part_lse = part_lse[0]
            if call.empty is not None:
                part_lse = part_lse.masked_fill(call.empty, -torch.inf)
            merge_rows(out, lse, call.index, part[0, ..., :dim], part_lse)


def stairs_backward(routing: Routing, lists: Lists, saved: Saved) -> None:
    """Gradients of :func:`stairs_forward` under the merged out and lse, added to the sums."""
    dim = routing.query.shape[-1]
    for own in _lists(routing, lists):
        d_key, d_value = torch.zeros_like(own.key[0]), torch.zeros_like(own.value[0])
        for call in _parts(routing, lists, own):
            width = call.query.shape[-1] - dim
            grad, out = (
                pad(gather(x, call.index), (0, width)).unsqueeze(0)
                for x in (saved.grad, saved.out)
            )
            lse = saved.lse.index_select(1, call.index)
            if call.empty is not None:
                lse.masked_fill_(call.empty, torch.inf)
            d_query, *parts = cpu_backward(
                grad, call.query, own.key[:, :, call.keys], own.value[:, :, call.keys], out,
                lse.unsqueeze(0), routing.scale, mask=call.mask,
            )  # fmt: skip
            saved.d_query.index_add_(1, call.index, d_query[0, ..., :dim])
            for total, part in zip((d_key, d_value), parts, strict=True):
                total[:, call.keys] += part[0]
        saved.d_key.index_add_(1, own.key_index, d_key[..., :dim])
        saved.d_value.index_add_(1, own.key_index, d_value[..., :dim])


def _lists(routing: Routing, lists: Lists) -> Iterator[_List]:
    all_stairs = lists.stairs if lists.stairs is not None else lists.key_index
    for group in range(lists.count):
        n = routing.number * lists.count + group
        queries = slice(lists.query_offsets[n], lists.query_offsets[n + 1])
        keys = slice(lists.key_offsets[n], lists.key_offsets[n + 1])
        if queries.start == queries.stop or keys.start == keys.stop:
            continue
        key_index = lists.key_index[keys] - routing.base
        key, value = gather(routing.key, key_index), gather(routing.value, key_index)
        if lists.repeats and group:
            codes = lists.key_codes[key_index + routing.base]
            key, value = with_codes(key, codes, group, 1.0, routing.scale), _widen(value, group)
        yield _List(
            group, lists.query_index[queries] - routing.base, key_index, all_stairs[queries],
            None if lists.first is None else lists.first[queries],
            key.unsqueeze(0), value.unsqueeze(0),
        )  # fmt: skip


def _parts(routing: Routing, lists: Lists, own: _List) -> Iterator[_Part]:
    total = own.query_index.shape[0]
    height = stair_rows(total)
    ends = [min(start + height, total) for start in range(0, total, height)]
    lows, highs = own.stairs[::height].tolist(), own.stairs[[end - 1 for end in ends]].tolist()
    for n, (low, high) in enumerate(zip(lows, highs, strict=True)):
        rows = slice(n * height, ends[n])
        if high == 0:
            continue
        index = own.query_index[rows]
        query = gather(routing.query, index)
        if lists.repeats and own.group:
            codes = lists.query_codes[index + routing.base]
            query = with_codes(query, codes, own.group, -1.0, routing.scale)
        query = query.unsqueeze(0)
        if low < RECTANGLE or own.first is not None:
            low = 0
        else:
            yield _Part(index, query, slice(0, low), None, None)
        if high > low:
            yield _Part(index, query, slice(low, high), *_mask(routing, own, rows, low, high))


def _mask(routing: Routing, own: _List, rows: slice, low: int,
          high: int) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Additive mask (M, high - low) of the keys beyond each query's stair; the empty rows."""
    stairs = own.stairs[rows, None]
    hidden = torch.arange(low, high, dtype=stairs.dtype) >= stairs
    if own.first is not None:
        # A query's sinks are left to the first of its lists.
        sinks = own.key_index[low:high] < routing.start + routing.sinks
        hidden |= sinks & ~own.first[rows, None]
    mask = torch.zeros(hidden.shape, dtype=mask_dtype(routing.query.dtype))
    return mask.masked_fill_(hidden, -torch.inf), hidden.all(1)


def _widen(value: Tensor, groups: int) -> Tensor:
    return pad(value, (0, -(-groups // 8) * 8))
