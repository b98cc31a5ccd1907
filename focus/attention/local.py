"""The local call on CPU: a band of blocks, each a few queries beside the keys of their windows.

Shape suffixes: H query heads and Hk key heads of the routing, T tokens, D head dimension, K groups,
P blocks, C queries of a block, W keys before a block.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor
from torch.nn.functional import pad

from focus.attention.groups import Routing, Saved
from focus.attention.kernels import cpu_backward, cpu_forward, mask_dtype
from focus.attention.plan import Lists

SHARED = 1e9  # lowers the logit of a pair that the group call counts: its weight underflows to 0
MASK_ELEMENTS = 1 << 20  # of a call's mask: some megabytes, whatever the length


def _blocks(routing: Routing, block: int) -> Iterator[tuple[int, int, int]]:
    """(start, blocks, C) of calls that cover the real tokens; the last may be one short block."""
    before = _before(routing.window)
    most = max(1, MASK_ELEMENTS // (block * (block + before)))
    at = routing.start
    while routing.stop - at >= block:
        count = min(most, (routing.stop - at) // block)
        yield at, count, block
        at += count * block
    if at < routing.stop:
        yield at, 1, routing.stop - at


def _before(window: int) -> int:
    return -(-(window - 1) // 32) * 32


def _banded(x: Tensor, dim: int, at: int, count: int, block: int, before: int, start: int) -> Tensor:
    """Overlapping windows [at - before, at + block) of each block, as a view: new last dimension."""
    low = at - before
    missing = max(0, start - low)
    part = x.narrow(dim, low + missing, before - missing + count * block)
    if missing:
        widths = [0, 0] * (x.dim() - 1 - dim) + [missing, 0]
        part = pad(part, widths)
    return part.unfold(dim, before + block, block)


def _local_operands(routing: Routing, codes: tuple[Tensor, Tensor], at: int, count: int,
                    block: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """query (P, H, C, D), key and value (P, Hk, W + C, D) as views, mask (P, 1, C, W + C)."""
    before = _before(routing.window)
    query = _unblock(routing.query, at, count, block)
    band = (at, count, block, before, routing.start)
    key, value = (_banded(x, 1, *band).permute(1, 0, 3, 2) for x in (routing.key, routing.value))
    query_codes, key_codes = codes
    column = torch.arange(before + block) - before
    distance = torch.arange(block)[:, None] - column[None, :]
    outside = (distance < 0) | (distance >= routing.window)
    base = torch.zeros(outside.shape, dtype=query_codes.dtype).masked_fill_(outside, -torch.inf)
    shared = _banded(key_codes, 0, *band)
    if at - before < routing.start:
        missing = routing.start - (at - before)
        first = base.expand(count, -1, -1).clone()
        for p in range(min(count, -(-missing // block))):
            first[p, :, : missing - p * block] = -torch.inf
        base = first
    mask = torch.baddbmm(base, query_codes[at : at + count * block].view(count, block, -1), shared)
    return query, key, value, mask.unsqueeze(1)


def _unblock(x_HTD: Tensor, at: int, count: int, block: int) -> Tensor:
    """(P, H, C, D) view of consecutive blocks."""
    return x_HTD[:, at : at + count * block].unflatten(1, (count, block)).transpose(0, 1)


def _local_codes(lists: Lists, routing: Routing) -> tuple[Tensor, Tensor]:
    """(T, K) operands whose product lowers every pair that shares a group."""
    rows = slice(routing.base, routing.base + routing.query.shape[1])
    dtype = mask_dtype(routing.query.dtype)
    query = lists.query_codes_XK[rows].to(dtype) * -SHARED
    return query, lists.key_codes_XK[rows].to(dtype)


def local_forward(routing: Routing, lists: Lists, out: Tensor, lse: Tensor) -> None:
    """Pairs within the window that share no group, written to out (H, T, D) and lse (H, T)."""
    codes = _local_codes(lists, routing)
    for at, count, block in _blocks(routing, forward_block(routing.window)):
        query, key, value, mask = _local_operands(routing, codes, at, count, block)
        part, part_lse = cpu_forward(query, key, value, routing.scale, mask=mask)
        _unblock(out, at, count, block).copy_(part)
        lse[:, at : at + count * block].unflatten(1, (count, block)).copy_(part_lse.transpose(0, 1))


def forward_block(window: int) -> int:
    """Queries of a local block: few beside a small window, where most of C + W would be masked."""
    return min(256, max(32, window // 4 // 32 * 32))


def backward_block(window: int) -> int:
    """As :func:`forward_block`; the backward pass adds up overlapping keys, so blocks are larger."""
    return min(256, max(64, window // 32 * 32))


def local_backward(routing: Routing, lists: Lists, saved: Saved) -> None:
    """Gradients of :func:`local_forward` under the merged out and lse, added to the sums."""
    codes = _local_codes(lists, routing)
    before = _before(routing.window)
    for at, count, block in _blocks(routing, backward_block(routing.window)):
        query, key, value, mask = _local_operands(routing, codes, at, count, block)
        grad, out = (_unblock(x, at, count, block) for x in (saved.grad, saved.out))
        lse = saved.lse[:, at : at + count * block].unflatten(1, (count, block)).transpose(0, 1)
        d_query, *d_others = cpu_backward(
            grad, query, key, value, out, lse, routing.scale, mask=mask
        )
        _unblock(saved.d_query, at, count, block).add_(d_query)
        for total, part in zip((saved.d_key, saved.d_value), d_others, strict=True):
            _overlap_add(total, part, at, block, before, routing.start)


def _overlap_add(total_HTD: Tensor, part_PHND: Tensor, at: int, block: int, before: int,
                 start: int) -> None:  # fmt: skip
    """Adds blocks of W + C keys, C apart, one tile of C keys at a time so that none overlap."""
    count, _, width, _ = part_PHND.shape
    for low in range(0, width, block):
        tile = part_PHND[:, :, low : low + block].transpose(0, 1)
        first = at - before + low
        skip = min(count, max(0, -(-(start - first) // block)))
        if skip:
            # A tile that straddles the first token: its blocks are added one by one.
            for p in range(skip):
                cut = min(tile.shape[2], start - (first + p * block))
                begin = first + p * block + cut
                total_HTD[:, begin : begin + tile.shape[2] - cut] += tile[:, p, cut:]
        if skip < count:
            begin = first + skip * block
            target = total_HTD[:, begin:].as_strided(
                (total_HTD.shape[0], count - skip, tile.shape[2], tile.shape[3]),
                (total_HTD.stride(0), block * total_HTD.stride(1), *total_HTD.stride()[1:]),
            )
            target.add_(tile[:, skip:])


