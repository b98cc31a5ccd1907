"""The kernels' call. No loop of ours runs over tokens; the host waits for the device twice, and
once a pass.

Shape suffixes: B batch, T tokens, H query heads, Hk key heads, D head dimension.
"""

from __future__ import annotations

import importlib.util
from functools import cache

import torch
from torch import Tensor

from focus.attention.checks import Inputs, cleared
from focus.attention.triton import lists

MOST_DIM = 256
LARGE = 2**17 + 2**12  # bytes of shared memory that three stages need at 128 dimensions
MOST_GROUPS = 62  # as bits of an int64
FEW = 32  # queries whose further keys are read by one program
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
    if x.query.shape[-1] > MOST_DIM:
        return f"query: has {x.query.shape[-1]} > {MOST_DIM} dimensions a head; use " \
               "backend='stripes'"  # fmt: skip
    if x.membership.shape[-1] > MOST_GROUPS:
        return f"membership: has {x.membership.shape[-1]} > {MOST_GROUPS} groups; use " \
               "backend='stripes'"  # fmt: skip
    return None


def forward(x: Inputs) -> tuple[Tensor, Tensor]:
    """Output (B, H, T, D) and log-sum-exp (B, H, T), zeros in padding, of inputs after
    :func:`focus.attention.checks.check_contents`."""
    rows = [
        cleared(each, x.real).transpose(1, 2).contiguous() for each in (x.query, x.key, x.value)
    ]
    out = torch.empty_like(rows[0])
    lse = out.new_empty(out.shape[:3], dtype=torch.float32)
    _near(x, rows, out, lse)
    if x.window < x.query.shape[2]:
        groups = x.membership, x.key_membership
        query_bits, key_bits = (lists.bits(each.flatten(0, 1)) for each in groups)
        _distant(x, rows, out, lse, query_bits, key_bits)
        if x.extra is not None:
            _further(x, x.extra, rows, out, lse, query_bits, key_bits)
    out, lse = out.transpose(1, 2), lse.transpose(1, 2).contiguous()
    if x.real is not None:
        out.masked_fill_(~x.real[:, None, :, None], 0.0)
        lse.masked_fill_(~x.real[:, None, :], 0.0)
    return out, lse


def _near(x: Inputs, rows: list[Tensor], out: Tensor, lse: Tensor) -> None:
    from focus.attention.triton import kernels

    batch, tokens, heads, dim = rows[0].shape
    sinks = torch.arange(x.sinks, device=out.device).expand(batch, -1)
    if x.real is not None:
        sinks = torch.searchsorted(x.real.cumsum(1), sinks + 1)
    real = sinks if x.real is None else x.real.to(torch.uint8)
    block_m, block_n, options = _sizes(dim, out.device)
    with torch.cuda.device_of(out):
        kernels.near[(-(-tokens // block_m), batch * heads)](
            *rows, real, sinks.int().contiguous(), out, lse, tokens, min(x.window, tokens),
            x.scale, heads, rows[1].shape[2], x.sinks, D=dim, PADDED=x.real is not None,
            BLOCK_M=block_m, BLOCK_N=block_n, BLOCK_S=SINKS, BLOCK_D=power(dim), **options,
        )  # fmt: skip


def _distant(x: Inputs, rows: list[Tensor], out: Tensor, lse: Tensor, query_bits: Tensor,
             key_bits: Tensor) -> None:  # fmt: skip
    from focus.attention.triton import kernels

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


def _further(x: Inputs, extra: Tensor, rows: list[Tensor], out: Tensor, lse: Tensor,
             query_bits: Tensor, key_bits: Tensor) -> None:  # fmt: skip
    from focus.attention.triton import kernels

    batch, tokens, heads, dim = rows[0].shape
    with torch.cuda.device_of(out):
        kernels.further[(-(-tokens // FEW), batch * heads)](
            *rows, extra.contiguous(), query_bits, key_bits, out, lse, tokens, x.scale, heads,
            rows[1].shape[2], x.membership.shape[1], extra.shape[2], D=dim, BLOCK_M=FEW,
            BLOCK_D=power(dim),
        )  # fmt: skip


def power(dim: int) -> int:
    """The next power of two that kernels work in, of 16 at least."""
    return max(16, 1 << (dim - 1).bit_length())


def _sizes(dim: int, device: torch.device) -> tuple[int, int, dict[str, int]]:
    """Queries of a block, keys of a step, and what the compiler is told (measured on an H100)."""
    if dim > 128:
        return 64, 32, {"num_warps": 4, "num_stages": 2}
    stages = 3 if _shared_memory(device.index or 0) > LARGE else 2
    return 128, 64, {"num_warps": 4 if dim <= 64 else 8, "num_stages": stages}


@cache
def _shared_memory(index: int) -> int:
    """Bytes that a program may have."""
    from triton.runtime import driver

    return int(driver.active.utils.get_device_properties(index)["max_shared_mem"])
