"""Calls the compiled decoding step: every query over runs of keys that lie where they are.

Shape suffixes: B batch, H query heads, D head dimension, N keys.
"""

from __future__ import annotations

import ctypes
import struct
from typing import NamedTuple

import torch
from torch import Tensor

from focus.attention.native.build import library
from focus.attention.native.call import limits, usable


class KeyRun(NamedTuple):
    """Consecutive queries (rows of (B * H, D)) over one contiguous run of keys and values (N, D) of
    one head; mask: (N,), or (queries, N), float32, added to the logits."""

    first: int
    queries: int
    key: Tensor
    value: Tensor
    mask: Tensor | None = None


class _Problem(ctypes.Structure):
    """As in step.cpp."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("query", "out", "runs")),
        *((name, ctypes.c_int32) for name in ("number", "queries", "dim", "bfloat16", "threads")),
        ("scale", ctypes.c_float),
    )


_RUN = struct.Struct("=QQQqiiii")  # as in step.cpp


def computes(query: Tensor, softcap: float | None) -> bool:
    """Whether the kernel can take this step's query (B, H, 1, D)."""
    kernel = None if softcap is not None else usable((query,))
    return kernel is not None and query.shape[-1] <= limits(kernel)[2]


def attend(query: Tensor, runs: list[KeyRun], scale: float) -> Tensor:
    """Softmax of each query over all its runs together.

    Args:
        query: (B, H, 1, D) that :func:`computes` allows; keys and values are of its dtype.
        runs: in any order; a query without any, or whose keys are all masked, gets zeros.
        scale: factor of the logits.

    Returns:
        (B, H, 1, D); NaN where a value, or a logit that is not -inf, is not finite.

    Raises:
        ValueError: a key or value of another dtype.
        MemoryError: there is no room for the parts.
    """
    kernel = library()
    if kernel is None:
        raise RuntimeError("there is no compiled kernel; ask computes() first")
    batch, heads, _, dim = query.shape
    rows = query.detach().to(torch.float32).contiguous()
    out = torch.empty_like(rows)
    packed = bytearray(_RUN.size * len(runs))
    if any(x.dtype != query.dtype for each in runs for x in (each.key, each.value)):
        raise ValueError(f"key: must be of the query's dtype {query.dtype}, as must be the value")
    for n, each in enumerate(runs):
        mask, apart = (0, 0) if each.mask is None else _place(each.mask)
        _RUN.pack_into(
            packed, n * _RUN.size, each.key.data_ptr(), each.value.data_ptr(), mask, apart,
            each.first, each.queries, each.key.shape[0], 0,
        )  # fmt: skip
    room = (ctypes.c_char * len(packed)).from_buffer(packed)
    problem = _Problem(
        rows.data_ptr(), out.data_ptr(), ctypes.addressof(room), len(runs), batch * heads,
        dim, int(query.dtype == torch.bfloat16), torch.get_num_threads(), scale,
    )  # fmt: skip
    status = int(kernel.focus_step(ctypes.byref(problem)))
    if status == 1:
        raise MemoryError("decoding: no memory for the parts of a step; shorten the batch")
    if status:
        raise RuntimeError(f"the compiled step answers {status}; please report it")
    return out.to(query.dtype)


def _place(mask: Tensor) -> tuple[int, int]:
    return mask.data_ptr(), mask.stride(0) if mask.dim() == 2 else 0
