"""The local call on CPU: blocks of a few queries, each beside the keys of their windows.

Shape suffixes: H query heads and Hk key heads of the routing, T tokens, D head dimension, K groups,
P blocks, C queries of a block, W keys before a block.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor
from torch.nn.functional import pad

from focus.attention.groups import Codes, Routing, Saved
from focus.attention.kernels import cpu_backward, cpu_forward, mask_dtype

SHARED = 1e9  # lowers the logit of a pair that the group call counts: its weight underflows to 0
MASK_ELEMENTS = 1 << 18  # of a call's mask: operands and results then stay in the cache


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


def _banded(x: Tensor, dim: int, band: tuple[int, int, int, int, int],
            dtype: torch.dtype) -> Tensor:  # fmt: skip
    """Overlapping windows [at - W, at + C) of blocks C apart, as a view with one more dimension.

    ``band`` is (at, blocks, C, W, first real token); keys before the latter are zeros.
    """
    at, count, block, before, start = band
    low = at - before
    missing = max(0, start - low)
    part = x.narrow(dim, low + missing, before - missing + count * block).to(dtype)
    if missing:
        part = pad(part, [0, 0] * (x.dim() - 1 - dim) + [missing, 0])
    return part.unfold(dim, before + block, block)


def _local_operands(
    routing: Routing, codes: Codes, at: int, count: int, block: int,
    dtype: torch.dtype,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """query (P, H, C, D), key and value (P, Hk, W + C, D) as views, mask (P, 1, C, W + C)."""
    band = (at, count, block, _before(routing.window), routing.start)
    query = _unblock(routing.query, at, count, block).to(dtype)
    key, value = (
        _banded(x, 1, band, dtype).permute(1, 0, 3, 2) for x in (routing.key, routing.value)
    )
    query_codes = codes[0][at : at + count * block].view(count, block, -1)
    key_codes = _banded(codes[1], 0, band, codes[1].dtype)
    mask = torch.baddbmm(_band_mask(routing, band), query_codes, key_codes)
    return query, key, value, mask.unsqueeze(1)


def _band_mask(routing: Routing, band: tuple[int, int, int, int, int]) -> Tensor:
    """(P or 1, C, W + C): 0 within the window, -inf outside and before the first real token."""
    at, count, block, before, start = band
    column = torch.arange(before + block) - before
    distance = torch.arange(block)[:, None] - column
    outside = (distance < 0) | (distance >= routing.window)
    mask = torch.zeros(outside.shape, dtype=mask_dtype(routing.query.dtype))
    mask.masked_fill_(outside, -torch.inf)
    if at - before >= start:
        return mask
    position = torch.arange(at, at + count * block, block)[:, None] + column
    return mask + torch.zeros(position.shape).masked_fill_(position < start, -torch.inf)[:, None]


def _unblock(x_HTD: Tensor, at: int, count: int, block: int) -> Tensor:
    """(P, H, C, D) view of consecutive blocks."""
    return x_HTD[:, at : at + count * block].unflatten(1, (count, block)).transpose(0, 1)


def _scaled(codes: Codes, routing: Routing) -> Codes:
    """Operands whose product lowers every pair that shares a group."""
    dtype = mask_dtype(routing.query.dtype)
    return codes[0].to(dtype) * -SHARED, codes[1].to(dtype)


def local_forward(routing: Routing, codes: Codes, out: Tensor, lse: Tensor) -> None:
    """Pairs within the window that share no group, merged into out (H, T, D) and lse (H, T)."""
    codes = _scaled(codes, routing)
    for at, count, block in _blocks(routing, block_queries(routing.window)):
        query, key, value, mask = _local_operands(
            routing, codes, at, count, block, routing.query.dtype
        )
        part, part_lse = cpu_forward(query, key, value, routing.scale, mask=mask)
        total = _unblock(out, at, count, block)
        total_lse = lse[:, at : at + count * block].unflatten(1, (count, block)).transpose(0, 1)
        new_lse = torch.logaddexp(total_lse, part_lse)
        weight = torch.exp(part_lse - new_lse).unsqueeze(-1)
        if total.dtype == lse.dtype:
            total.lerp_(part.to(lse.dtype), weight)
        else:
            total.copy_(total.to(lse.dtype).lerp_(part.to(lse.dtype), weight))
        total_lse.copy_(new_lse)


def block_queries(window: int) -> int:
    """Queries of a block: few beside a small window, where most of C + W would be masked."""
    return min(256, max(32, window // 4 // 32 * 32))


def local_backward(routing: Routing, codes: Codes, saved: Saved) -> None:
    """Gradients of :func:`local_forward` under the merged out and lse, added to the sums.

    Half precision is brought to float32 block by block: the kernel's small half-precision products
    take half as long again.
    """
    dtype = mask_dtype(routing.query.dtype)
    codes = _scaled(codes, routing)
    before = _before(routing.window)
    for at, count, block in _blocks(routing, block_queries(routing.window)):
        query, key, value, mask = _local_operands(routing, codes, at, count, block, dtype)
        grad, out = (_unblock(x, at, count, block).to(dtype) for x in (saved.grad, saved.out))
        lse = saved.lse[:, at : at + count * block].unflatten(1, (count, block)).transpose(0, 1)
        d_query, *d_others = cpu_backward(
            grad, query, key, value, out, lse, routing.scale, mask=mask
        )
        _unblock(saved.d_query, at, count, block).add_(d_query)
        first = max(routing.start, at - before)
        for total, part in zip((saved.d_key, saved.d_value), d_others, strict=True):
            near = _overlap_add(part, block)[:, first - (at - before) :]
            total[:, first : at + count * block] += near


def _overlap_add(part_PHND: Tensor, block: int) -> Tensor:
    """Sums blocks of W + C keys, C apart: (H, W + P * C, D). Tiles of C keys do not overlap."""
    count, heads, width, dim = part_PHND.shape
    total = part_PHND.new_zeros(heads, width + (count - 1) * block, dim)
    for low in range(0, width, block):
        tile = part_PHND[:, :, low : low + block].transpose(0, 1)
        strides = (total.stride(0), block * dim, dim, 1)
        total.as_strided(tile.shape, strides, low * dim).add_(tile)
    return total


def local_attention(query: Tensor, key: Tensor, value: Tensor, window: int) -> Tensor:
    """The sliding window alone, (B, H, T, D), without a gradient: a baseline.


    Args:
        query: (B, H, T, D) on CPU; key, value: (B, Hk, T, D).
        window: tokens of the window, the query's own among them.
    """
    tokens = query.shape[2]
    out = torch.zeros_like(query)
    lse_type = torch.promote_types(query.dtype, torch.float32)
    lse = torch.full(query.shape[:3], -torch.inf, dtype=lse_type)
    codes = torch.zeros(tokens, 1), torch.zeros(tokens, 1)
    scale = query.shape[-1] ** -0.5
    for b in range(query.shape[0]):
        routing = Routing(query[b], key[b], value[b], 0, tokens, 0, 0, window, 0, scale)
        local_forward(routing, codes, out[b], lse[b])
    return out
