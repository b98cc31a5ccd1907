"""Calls the compiled kernel: tensors to pointers, and its refusals to errors.

Shape suffixes: B batch, T tokens, H query heads, Hk key heads, D head dimension, K groups.
"""

from __future__ import annotations

import ctypes
import functools
import struct
from typing import Any

import torch
from torch import Tensor

from focus.attention.checks import Inputs, check_contents, check_finite, for_query_heads
from focus.attention.native.build import NO_GROUP, NOT_FINITE, library, places, run

DTYPES = (torch.float32, torch.bfloat16)
AUTO, LISTS, DENSE = range(3)  # let the kernel choose; by group; every pair tested
_PROBLEM = struct.Struct("@9P20q14if0P")  # as in lists.h
_GRAD_PROBLEM = struct.Struct("@P3q3P")  # what follows it in backward.h


def refusal(x: Inputs) -> str | None:
    """Why the kernel cannot compute this call, or None."""
    if x.query.device.type != "cpu":
        return f"query: is on {x.query.device}; the compiled kernel is for CPU"
    if x.query.dtype not in DTYPES:
        return f"query: is {x.query.dtype}; the compiled kernel takes float32 and bfloat16"
    kernel = library()
    if kernel is None:
        return "backend: there is no compiled kernel here"
    lanes, groups, dim = limits(kernel)
    if x.query.shape[-1] % lanes or x.query.shape[-1] > dim:
        return (
            f"query: the compiled kernel takes head dimensions that are multiples of {lanes} up to "
            f"{dim}, got {x.query.shape[-1]}"
        )
    if x.membership.shape[-1] > groups:
        return f"membership: the compiled kernel takes up to {groups} groups"
    return None


@functools.cache
def limits(kernel: ctypes.CDLL) -> tuple[int, ...]:
    """Lanes of a vector, most groups, greatest head dimension."""
    found = (ctypes.c_int32 * 3)()
    kernel.focus_limits(found)
    return tuple(found)


def real_spans(query: Tensor, real: Tensor | None) -> list[tuple[int, int]] | None:
    """First and last + 1 real token of every sequence; None if padding stands between them.

    Args:
        query: (B, H, T, D); real: (B, T) bool or None.
    """
    batch, tokens = query.shape[0], query.shape[2]
    if real is None:
        return [(0, tokens)] * batch
    starts, counts = real.int().argmax(1), real.sum(1)
    position = torch.arange(tokens, device=real.device)
    inside = (position >= starts[:, None]) & (position < (starts + counts)[:, None])
    if not torch.equal(inside, real):
        return None
    return [(start, stop) for start, stop in torch.stack([starts, starts + counts], 1).tolist()]


def forward(x: Inputs, spans: list[tuple[int, int]],
            mode: int = AUTO) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Output (B, H, T, D) and log-sum-exp (B, H, T) float32, 0 in padding.

    Args:
        x: inputs after :func:`focus.attention.extra.settle`; the kernel itself sees what is not
            finite and who has no group.
        spans: see :func:`real_spans`.
        mode: how; the results are the same.

    Finite inputs whose logits leave float32's range (beyond 3e38) lose keys.

    Raises:
        ValueError: see :func:`focus.attention.checks.check_contents`.
    """
    make = x.query.new_empty if x.real is None else x.query.new_zeros
    batch, heads, tokens, dim = x.query.shape
    # Laid out as models use it next: heads beside each other.
    out = make((batch, tokens, heads, dim)).transpose(1, 2)
    lse = make((batch, heads, tokens), dtype=torch.float32)  # whatever the default is
    problem, _keep = _problem(x, spans, mode, out, lse)
    refused = run("focus_attention_forward", problem, NOT_FINITE, NO_GROUP)
    if refused:
        check_finite(x)
        check_contents(x)  # says what the kernel has seen
        raise RuntimeError(f"the compiled kernel answers {refused}; please report it")
    return out, lse


def backward(grad: Tensor, x: Inputs, out: Tensor, lse: Tensor, spans: list[tuple[int, int]],
             mode: int = AUTO) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Gradients in query, key and value, given the output and log-sum-exp of :func:`forward`."""
    grad = _rows(grad)
    problem, kept = _problem(x, spans, mode, _rows(out), lse.contiguous())
    wide = [each.new_zeros(each.shape, dtype=torch.float32) for each in kept[:3]]
    further = _GRAD_PROBLEM.pack(grad.data_ptr(), *grad.stride()[:3], *places(wide))
    run("focus_attention_backward", problem + further)
    # Where query heads have key memberships of their own, keys were repeated for each.
    d_key, d_value = (each.unflatten(1, (x.key.shape[1], -1)).sum(2) if each.shape != x.key.shape
                      else each for each in wide[1:])  # fmt: skip
    return wide[0].to(x.query.dtype), d_key.to(x.key.dtype), d_value.to(x.value.dtype)


def _problem(x: Inputs, spans: list[tuple[int, int]], mode: int, out: Tensor,
             lse: Tensor) -> tuple[bytes, tuple[Any, ...]]:  # fmt: skip
    """The kernel's arguments, and what must live until it returns: query, key and value first."""
    batch, heads, tokens, dim = x.query.shape
    query, key, value = (_rows(each.detach()) for each in (x.query, x.key, x.value))
    if x.key_membership.shape[1] > key.shape[1]:  # keys in other groups for each query head
        key, value = (for_query_heads(each, heads) for each in (key, value))
    extra = None if x.extra is None else x.extra.to(torch.int32).contiguous()
    ends = (ctypes.c_int32 * (2 * batch))(*(end for span in spans for end in span))
    numbers = (batch, heads, key.shape[1], tokens, dim, x.membership.shape[-1],
               x.membership.shape[1], x.key_membership.shape[1], x.window, x.sinks,
               query.dtype == torch.bfloat16, mode, torch.get_num_threads(),
               0 if extra is None else extra.shape[2])  # fmt: skip
    tensors = (query, key, value, out, lse, x.membership, x.key_membership)
    strides = [n for each in tensors[:4] for n in each.stride()[:3]]
    strides += [n for each in tensors[5:] for n in each.stride()]
    problem = _PROBLEM.pack(
        *places(tensors), ctypes.addressof(ends), *places([extra]), *strides,
        *(min(number, 2**31 - 1) for number in numbers), x.scale,
    )  # fmt: skip
    return problem, (*tensors, ends, extra)


def _rows(x: Tensor) -> Tensor:
    """With rows in one piece."""
    return x if x.stride(-1) == 1 else x.contiguous()
