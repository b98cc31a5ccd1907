"""Group calls on CPU where queries and keys of a group are different lists: a staircase.

Query n of a list sees its first ``stairs[n]`` keys. Queries go in chunks; a chunk's call takes the
keys that its last query sees, and a mask that is zero but for the few columns between its first and
its last query's stair.

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


def stair_rows(queries: int) -> int:
    """Queries of a call: many where the triangle above its stairs is a small share of a list."""
    return 192 if queries >= 3072 else 64


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
class _Chunk:
    """Queries of one call: (1, H, M, D'), the keys they see, and those that see any."""

    index: Tensor
    query: Tensor
    keys: int
    mask: Tensor
    empty: Tensor


def stairs_forward(routing: Routing, lists: Lists, out: Tensor, lse: Tensor) -> None:
    """Attention to the earlier keys of each group, merged into out (H, T, D) and lse (H, T)."""
    dim = routing.query.shape[-1]
    for own in _lists(routing, lists):
        for chunk in _chunks(routing, lists, own):
            part, part_lse = cpu_forward(
                chunk.query, own.key[:, :, : chunk.keys], own.value[:, :, : chunk.keys],
                routing.scale, mask=chunk.mask,
            )  # fmt: skip
            part_lse = part_lse[0].masked_fill(chunk.empty, -torch.inf)
            merge_rows(out, lse, chunk.index, part[0, ..., :dim], part_lse)


def stairs_backward(routing: Routing, lists: Lists, saved: Saved) -> None:
    """Gradients of :func:`stairs_forward` under the merged out and lse, added to the sums."""
    dim = routing.query.shape[-1]
    for own in _lists(routing, lists):
        d_key, d_value = torch.zeros_like(own.key[0]), torch.zeros_like(own.value[0])
        for chunk in _chunks(routing, lists, own):
            width = chunk.query.shape[-1] - dim
            grad, out = (
                pad(gather(x, chunk.index), (0, width)).unsqueeze(0)
                for x in (saved.grad, saved.out)
            )
            lse = saved.lse.index_select(1, chunk.index).masked_fill_(chunk.empty, torch.inf)
            d_query, *parts = cpu_backward(
                grad, chunk.query, own.key[:, :, : chunk.keys], own.value[:, :, : chunk.keys],
                out, lse.unsqueeze(0), routing.scale, mask=chunk.mask,
            )  # fmt: skip
            saved.d_query.index_add_(1, chunk.index, d_query[0, ..., :dim])
            for total, part in zip((d_key, d_value), parts, strict=True):
                total[:, : chunk.keys] += part[0]
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


def _chunks(routing: Routing, lists: Lists, own: _List) -> Iterator[_Chunk]:
    total, keys = own.query_index.shape[0], own.key_index.shape[0]
    height = stair_rows(total)
    scratch = torch.zeros(min(height, total), keys, dtype=mask_dtype(routing.query.dtype))
    ends = [min(start + height, total) for start in range(0, total, height)]
    lows = own.stairs[::height].tolist()
    highs = own.stairs[[end - 1 for end in ends]].tolist()
    for n, (low, high) in enumerate(zip(lows, highs, strict=True)):
        rows = slice(n * height, ends[n])
        if high == 0:
            continue
        index, stairs = own.query_index[rows], own.stairs[rows]
        query = gather(routing.query, index)
        if lists.repeats and own.group:
            codes = lists.query_codes[index + routing.base]
            query = with_codes(query, codes, own.group, -1.0, routing.scale)
        mask = scratch[: ends[n] - rows.start, :high]
        hidden = torch.arange(low, high, dtype=stairs.dtype) >= stairs[:, None]
        mask[:, low:].masked_fill_(hidden, -torch.inf)
        empty = stairs == 0
        if own.first is not None:
            empty = _hide_sinks(mask, own, rows, routing, empty)
        yield _Chunk(index, query.unsqueeze(0), high, mask, empty)
        mask.zero_() if own.first is not None else mask[:, low:].zero_()


def _hide_sinks(mask: Tensor, own: _List, rows: slice, routing: Routing, empty: Tensor) -> Tensor:
    """Leaves the sinks to the first of a query's lists; returns which rows see nothing now."""
    sinks = int((own.key_index < routing.start + routing.sinks).sum())
    later = ~own.first[rows]
    mask[:, :sinks].masked_fill_(later[:, None], -torch.inf)
    return empty | (later & (own.stairs[rows] <= sinks))


def _widen(value: Tensor, groups: int) -> Tensor:
    return pad(value, (0, -(-groups // 8) * 8))
