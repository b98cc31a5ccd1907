"""Calls the compiled step: files new tokens in a past and attends from them, in one call.

Shape suffixes: B batch, H query heads, Hk key heads, R routings, M new tokens, D head dimension,
K groups, E further keys of a query.
"""

from __future__ import annotations

import ctypes
import struct

import torch
from torch import Tensor

from focus.attention.native.build import NOT_FINITE, library, places, run
from focus.attention.native.call import DTYPES, limits
from focus.attention.past import Past

_PROBLEM = struct.Struct("=14Q20q2d")  # as in step.h
FAR = 2**62
REFUSED = ("query: holds NaN or infinity at a real token (or its key or value does); find where it "
           "arises before attention")  # fmt: skip


def computes(query: Tensor) -> bool:
    """Whether the kernel takes tokens of this device, dtype and head dimension, its last."""
    if not query.is_cpu or query.dtype not in DTYPES or torch.compiler.is_compiling():
        return False
    kernel, dim = library(), query.shape[-1]
    if kernel is None:
        return False
    lanes, _, most = limits(kernel)
    return dim <= most and dim % lanes == 0


def attend(query: Tensor, key: Tensor, value: Tensor, query_groups: Tensor, key_groups: Tensor,
           past: Past, extra: Tensor | None, real: Tensor | None, scale: float,
           softcap: float | None) -> tuple[Tensor, int]:  # fmt: skip
    """As :func:`focus.attention.decode.decode_attention`, for a query that :func:`computes` allows;
    beside the output, how many pairs were kept, of all query routings."""
    start = past.make_room(key, key_groups, real)
    rows, bits, sinks = past.filed()
    (batch, heads, tokens, dim), (_, key_routings, _, groups) = query.shape, key_groups.shape
    lists, rule, kept = past.lists, past.rule, ctypes.c_int64()
    out = query.new_empty(query.shape)
    given = (query, key, value, query_groups, key_groups, extra, past.real, sinks)
    held = [None if x is None else x.contiguous() for x in given]  # until the call has returned
    limit = FAR if rule.limit is None else rule.limit
    problem = _PROBLEM.pack(
        *places(held), *places((rows, bits, lists, past.lengths, out)), ctypes.addressof(kept),
        batch, heads, key.shape[1], query_groups.shape[1], key_routings, tokens, dim, groups,
        bits.shape[3], 0 if extra is None else extra.shape[2], sinks.shape[1], past.first, start,
        rows.shape[2], 0 if lists is None else lists.shape[3], rule.reach, limit,
        rule.query_groups > 1 and rule.key_groups > 1, query.dtype == torch.bfloat16,
        torch.get_num_threads(), scale, softcap or 0.0,
    )  # fmt: skip
    if run("focus_step", problem, NOT_FINITE):
        raise ValueError(REFUSED)
    return out, kept.value
