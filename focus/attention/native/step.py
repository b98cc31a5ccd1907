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
    """Consecutive queries (rows of (B * H, D)) over ``keys`` consecutive keys and values.

    key, value: contiguous, of any shape (..., D), so that nothing is sliced; start: the first of
    their rows of D numbers; mask: (keys,), or (queries, keys), float32, added to the logits.
    """

    first: int
    queries: int
    key: Tensor
    value: Tensor
    start: int
    keys: int
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
    """Whether the kernel can take steps of this query's device, dtype and head dimension, its
    last."""
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
        ValueError: a key or value of another dtype, or not contiguous.
        MemoryError: there is no room for the parts.
    """
    kernel = library()
    if kernel is None:
        raise RuntimeError("there is no compiled kernel; ask computes() first")
    batch, heads, _, dim = query.shape
    rows = query.detach().to(torch.float32).contiguous()
    out = torch.empty_like(rows)
    packed = bytearray(_RUN.size * len(runs))
    row_bytes = dim * query.element_size()
    for n, (first, queries, key, value, start, keys, mask) in enumerate(runs):
        if not key.dtype == value.dtype == query.dtype:
            raise ValueError(f"key, value: must be of the query's dtype {query.dtype}")
        if not (key.is_contiguous() and value.is_contiguous()):
            raise ValueError("key, value: must be contiguous")
        at, (mask_at, apart) = start * row_bytes, (0, 0) if mask is None else _place(mask)
        _RUN.pack_into(packed, n * _RUN.size, key.data_ptr() + at, value.data_ptr() + at,
                       mask_at, apart, first, queries, keys, 0)  # fmt: skip
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
