"""The kernels' call: of short texts two to four launches, for which the host never waits; of long
ones lists of what the mask keeps are made first, for which it waits twice, and once a pass.

Shape suffixes: B batch, T tokens, H query heads, Hk key heads, D head dimension.
"""

from __future__ import annotations

import importlib.util
from dataclasses import replace
from functools import cache
from typing import NamedTuple

import torch
from torch import Tensor

from focus.attention.checks import Inputs
from focus.attention.triton import lists

MOST_DIM = 256
LARGE = 2**17 + 2**12  # bytes of shared memory that three stages need at 128 dimensions
MOST_GROUPS = 62  # as bits of an int64
NARROW = 30  # of an int32
MOST_PROGRAMS = 65535  # of a grid's second axis: sequences times heads
FEW = 32  # queries whose further keys are read by one program
PACKED = 128  # tokens whose groups one program packs
# Operations of full attention up to which reading all keys costs less than making lists: these take
# about 2 ms on an H100, on which kernels make 3e14 a second. Timed there with Llama-3 8B's heads,
# for which this is 8,192 tokens: reading all takes 2.6 ms there, lists 3.2; at 16,384 8.2 and 4.4.
SHORT = 2**39
# Backwards: seven products a pair in place of two, at less of their speed. Twice this would be no
# worse: at 4,096 tokens both passes take 6.0 ms where all is read and 7.1 by lists.
SHORT_BACKWARD = SHORT // 8
SINKS = 16  # of a step: the least that the matrix units take


@cache
def installed() -> bool:
    """Whether Triton is; CUDA builds of torch bring it."""
    return importlib.util.find_spec("triton") is not None


def refusal(x: Inputs) -> str | None:
    """Why the kernels cannot take these inputs; None where they can."""
    if not installed():
        return "backend: triton is not installed; pip install triton, or use 'varlen'"
    if not x.query.is_cuda:
        return f"query: is on {x.query.device}; triton is for CUDA"
    if x.query.dtype not in (torch.float16, torch.bfloat16):
        return f"query: is {x.query.dtype}; triton takes float16 and bfloat16: convert, or use " \
               "backend='stripes'"  # fmt: skip
    if x.query.shape[0] * x.query.shape[1] > MOST_PROGRAMS:
        return f"query: has more than {MOST_PROGRAMS} sequences times heads; give smaller " \
               "batches, or use backend='varlen'"  # fmt: skip
    if x.query.shape[-1] > MOST_DIM:
        return f"query: has {x.query.shape[-1]} > {MOST_DIM} dimensions a head; use " \
               "backend='stripes'"  # fmt: skip
    if x.membership.shape[-1] > MOST_GROUPS:
        return f"membership: has {x.membership.shape[-1]} > {MOST_GROUPS} groups; use " \
               "backend='stripes'"  # fmt: skip
    return None


def forward(x: Inputs, short: bool | None = None) -> tuple[Tensor, Tensor]:
    """Output (B, H, T, D) and log-sum-exp (B, H, T), zeros in padding, of inputs after
    :func:`focus.attention.checks.check_contents`, whose further keys need not be settled.

    Args:
        short: whether all keys are read; None: where that is less work.
    """
    tokens = x.query.shape[2]
    x = replace(x, sinks=min(x.sinks, tokens))
    rows = [each.transpose(1, 2).contiguous() for each in (x.query, x.key, x.value)]
    out = torch.empty_like(rows[0])
    lse = out.new_empty(out.shape[:3], dtype=torch.float32)
    call = _Call(x, rows, out, lse, *_packed(x))
    listed = not is_short(x, short)
    _masked(call, listed)
    if listed and x.window < tokens:
        _distant(call)
    if x.extra is not None and x.window < tokens:
        _further(call, x.extra)
    return out.transpose(1, 2), lse.transpose(1, 2)


def is_short(x: Inputs, known: bool | None, *, backward: bool = False) -> bool:
    """Whether all keys are read; ``known`` where that is decided."""
    batch, heads, tokens, dim = x.query.shape
    most = SHORT_BACKWARD if backward else SHORT
    return 2 * batch * heads * dim * tokens**2 <= most if known is None else known


class _Call(NamedTuple):
    """rows and out (B, T, H or Hk, D), lse (B, T, H); bits (B, Hm, T) of groups, with bit SINK for
    sinks, of queries and of keys."""

    x: Inputs
    rows: list[Tensor]
    out: Tensor
    lse: Tensor
    query_bits: Tensor
    key_bits: Tensor

    @property
    def real(self) -> Tensor:
        """(B, T) bytes; where nothing is padding, what is not read."""
        return self.key_bits if self.x.real is None else self.x.real.contiguous().view(torch.uint8)


def _packed(x: Inputs) -> tuple[Tensor, Tensor]:
    """The bits of queries and of keys, of a :class:`_Call`."""
    from focus.attention.triton import memberships

    batch, heads, tokens, groups = x.membership.shape
    dtype = torch.int32 if groups <= NARROW else torch.int64
    sinks = x.membership if x.real is None else _sinks(x)  # not read in the first case

    def packed(membership: Tensor) -> Tensor:
        bits = torch.empty(batch, heads, tokens, dtype=dtype, device=x.query.device)
        own = membership if membership.stride(3) == 1 else membership.contiguous()
        memberships.pack[(-(-tokens // PACKED), batch * heads)](
            own, sinks, bits, tokens, heads, groups, x.sinks, *own.stride()[:3], SINK=_sink(groups),
            PADDED=x.real is not None, BLOCK_T=PACKED, BLOCK_K=power(groups),
        )  # fmt: skip
        return bits

    with torch.cuda.device_of(x.query):
        key_bits = packed(x.key_membership)
        return packed(x.membership) if x.separate_keys else key_bits, key_bits


def _sinks(x: Inputs) -> Tensor:
    """(B, S) int32 positions, T where there are fewer."""
    numbers = torch.arange(x.sinks, dtype=torch.int32, device=x.query.device)
    numbers = numbers.repeat(len(x.query), 1)
    if x.real is None:
        return numbers
    return torch.searchsorted(x.real.cumsum(1), numbers + 1, out_int32=True)


def _sink(groups: int) -> int:
    """The bit of sinks: the highest below the sign."""
    return NARROW if groups <= NARROW else MOST_GROUPS


def _masked(call: _Call, listed: bool) -> None:
    """Every pair that the mask keeps; where groups are ``listed``, those that it keeps anyway."""
    from focus.attention.triton import kernels

    (batch, tokens, heads, dim), x = call.out.shape, call.x
    block_m, block_n, options = _sizes(dim, call.out.device)
    sinks = _sinks(x) if listed else call.key_bits  # not read in the second case
    with torch.cuda.device_of(call.out):
        kernels.masked[(-(-tokens // block_m), batch * heads)](
            *call.rows, call.query_bits, call.key_bits, sinks, call.real, call.out, call.lse,
            tokens, min(x.window, tokens), x.scale, heads, x.key.shape[1], x.membership.shape[1],
            x.sinks, D=dim, SINK=_sink(x.membership.shape[3]), LISTED=listed,
            PADDED=x.real is not None, BLOCK_M=block_m, BLOCK_N=block_n, BLOCK_S=SINKS,
            BLOCK_D=power(dim), **options,
        )  # fmt: skip


def _distant(call: _Call) -> None:
    from focus.attention.triton import kernels

    x, rows, out, lse = call.x, call.rows, call.out, call.lse
    query_bits, key_bits = (each.flatten(0, 1) for each in (call.query_bits, call.key_bits))
    tokens, heads, dim = rows[0].shape[1:]
    keys = lists.make_keys(x)
    if not len(keys.tokens):
        return
    key, value = (lists.gather(each, x, keys) for each in rows[1:])
    block_m, block_n, options = _sizes(dim, out.device)
    routings, groups = x.membership.shape[1:4:2]
    most_queries, most_keys = lists.most_groups(x)
    repeated = min(most_queries, most_keys) > 1
    bits = keys.tokens  # not read
    if repeated:
        bits = key_bits[keys.lists.div(groups, rounding_mode="floor"), keys.tokens]
    for own in lists.passes(x, keys, query_bits, most_queries, block_m):
        with torch.cuda.device_of(out):
            kernels.distant[(len(own.first), heads // routings)](
                rows[0], key, value, out, lse, own.tokens, own.allowed, own.before, bits,
                keys.starts, own.first, own.stop, own.lists, tokens, x.scale, heads, routings,
                lists.heads_of(x), groups, D=dim, REPEATED=repeated,
                BLOCK_M=block_m, BLOCK_N=block_n, BLOCK_D=power(dim), **options,
            )  # fmt: skip


def _further(call: _Call, extra: Tensor) -> None:
    from focus.attention.triton import kernels

    (batch, tokens, heads, dim), x = call.out.shape, call.x
    with torch.cuda.device_of(call.out):
        kernels.further[(-(-tokens // FEW), batch * heads)](
            *call.rows, extra.contiguous(), call.query_bits, call.key_bits, call.real, call.out,
            call.lse, tokens, x.window, x.scale, heads, x.key.shape[1], x.membership.shape[1],
            extra.shape[2], D=dim, SINK=_sink(x.membership.shape[3]), PADDED=x.real is not None,
            BLOCK_M=FEW, BLOCK_D=power(dim),
        )  # fmt: skip


def power(dim: int) -> int:
    """The next power of two that kernels work in, of 16 at least."""
    return max(16, 1 << (dim - 1).bit_length())


def _sizes(dim: int, device: torch.device) -> tuple[int, int, dict[str, int]]:
    """Queries of a block, keys of a step, and what the compiler is told (measured on an H100)."""
    if dim > 128:
        return 64, 32, {"num_warps": 4, "num_stages": 2}
    large = device.type == "cuda" and _shared_memory(device.index or 0) > LARGE
    return 128, 64, {"num_warps": 4 if dim <= 64 else 8, "num_stages": 3 if large else 2}


@cache
def _shared_memory(index: int) -> int:
    """Bytes that a program may have."""
    from triton.runtime import driver

    return int(driver.active.utils.get_device_properties(index)["max_shared_mem"])
