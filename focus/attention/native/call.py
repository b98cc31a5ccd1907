"""Calls the compiled kernel: tensors to pointers, and its refusals to errors.

Shape suffixes: B batch, T tokens, H query heads, Hk key heads, D head dimension, K groups.
"""

from __future__ import annotations

import ctypes
import functools
from typing import Any

import torch
from torch import Tensor

from focus.attention.checks import Inputs, check_contents, check_finite, for_query_heads
from focus.attention.native.build import library, needed

DTYPES = (torch.float32, torch.bfloat16)
AUTO, LISTS, DENSE = range(3)  # let the kernel choose; by group; every pair tested
DONE, NOT_FINITE, NO_GROUP, NO_MEMORY = range(4)
PARTS = ("lists", "packing", "groups", "window")  # of a call's time

_POINTERS = ("query", "key", "value", "out", "lse", "membership", "key_membership", "spans",
             "extra")  # fmt: skip
_STRIDES = ("query_strides", "key_strides", "value_strides", "out_strides")
_NUMBERS = ("batch", "heads", "key_heads", "tokens", "dim", "groups", "routings", "key_routings",
            "window", "sinks", "bfloat16", "mode", "threads", "extras")  # fmt: skip


class _Problem(ctypes.Structure):
    """As in lists.h."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in _POINTERS),
        *((name, ctypes.c_int64 * 3) for name in _STRIDES),
        ("membership_strides", ctypes.c_int64 * 4),
        ("key_membership_strides", ctypes.c_int64 * 4),
        *((name, ctypes.c_int32) for name in _NUMBERS),
        ("scale", ctypes.c_float),
        ("seconds", ctypes.c_void_p),
        ("chosen", ctypes.c_void_p),
    )


class _GradProblem(ctypes.Structure):
    """As in backward.h."""

    _fields_ = (
        ("forward", _Problem),
        ("grad", ctypes.c_void_p),
        ("grad_strides", ctypes.c_int64 * 3),
        *((name, ctypes.c_void_p) for name in ("d_query", "d_key", "d_value")),
    )


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


def check(x: Inputs) -> list[tuple[int, int]]:
    """First and last + 1 real token of every sequence, for the kernel.

    Raises:
        ValueError: the kernel cannot compute this call.
    """
    spans, why = real_spans(x.query, x.real), refusal(x)
    if spans is None:
        why = why or (
            "key_padding_mask: has padding between real tokens, which the compiled kernel does not "
            "take; pad on one side, or use backend='stripes'"
        )
    if spans is None or why is not None:
        raise ValueError(why)
    return spans


def forward(
    x: Inputs, spans: list[tuple[int, int]], mode: int = AUTO,
    seconds: dict[str, float] | None = None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Output (B, H, T, D) and log-sum-exp (B, H, T) float32, 0 in padding.

    Args:
        x: inputs after :func:`focus.attention.extra.settle`. Neither finite values nor a group for
            every token need have been checked: the kernel sees them anyway.
        spans: first and last + 1 real token of every sequence.
        mode: how; the results are the same.
        seconds: filled with what each of :data:`PARTS` took; the last is called ``every pair``
            where no lists were made.

    Finite inputs whose logits leave float32's range (beyond 3e38) lose keys.

    Raises:
        ValueError: see :func:`focus.attention.checks.check_contents`.
    """
    out = x.query.new_empty(
        x.query.shape[0], x.query.shape[2], x.query.shape[1], x.query.shape[3]
    ).transpose(1, 2)  # laid out as models use it next: heads beside each other
    lse = x.query.new_empty(x.query.shape[:3], dtype=torch.float32)  # whatever the default is
    took, chosen = (ctypes.c_double * len(PARTS))(), ctypes.c_int32()
    problem, _keep = _problem(x, spans, mode, out, lse)
    problem.seconds, problem.chosen = ctypes.addressof(took), ctypes.addressof(chosen)
    status = int(needed().focus_attention_forward(ctypes.byref(problem)))
    if seconds is not None:
        near = "window" if chosen.value == LISTS else "every pair"
        seconds.update(zip((*PARTS[:-1], near), took, strict=True))
    if status in (NOT_FINITE, NO_GROUP):
        check_finite(x)
        check_contents(x)  # says what the kernel has seen
    _answer(status)
    return out, lse


def backward(grad: Tensor, x: Inputs, out: Tensor, lse: Tensor, spans: list[tuple[int, int]],
             mode: int = AUTO) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Gradients in query, key and value, given the output and log-sum-exp of :func:`forward`."""
    grad = _rows(grad)
    problem, kept = _problem(x, spans, mode, _rows(out), lse.contiguous())
    wide = [each.new_zeros(each.shape, dtype=torch.float32) for each in kept[:3]]
    whole = _GradProblem(problem, grad.data_ptr(), (ctypes.c_int64 * 3)(*grad.stride()[:3]),
                         *(each.data_ptr() for each in wide))  # fmt: skip
    _answer(int(needed().focus_attention_backward(ctypes.byref(whole))))
    # Where query heads have key memberships of their own, keys were repeated for each.
    d_key, d_value = (each.unflatten(1, (x.key.shape[1], -1)).sum(2) if each.shape != x.key.shape
                      else each for each in wide[1:])  # fmt: skip
    return wide[0].to(x.query.dtype), d_key.to(x.key.dtype), d_value.to(x.value.dtype)


def _answer(status: int) -> None:
    if status == NO_MEMORY:
        raise MemoryError("focus_attention: no memory for the lists of groups; shorten the batch")
    if status != DONE:
        raise RuntimeError(f"the compiled kernel answers {status}; please report it")


def _problem(x: Inputs, spans: list[tuple[int, int]], mode: int, out: Tensor, lse: Tensor,
             ) -> tuple[_Problem, tuple[Any, ...]]:  # fmt: skip
    """The kernel's arguments, and what must live until it returns: query, key and value first."""
    batch, heads, tokens, dim = x.query.shape
    query, key, value = (_rows(each.detach()) for each in (x.query, x.key, x.value))
    if x.key_membership.shape[1] > key.shape[1]:  # keys in other groups for each query head
        key, value = (for_query_heads(each, heads) for each in (key, value))
    extra = None if x.extra is None else x.extra.to(torch.int32).contiguous()
    extras = 0 if extra is None else extra.shape[2]
    ends = (ctypes.c_int32 * (2 * batch))(*(end for span in spans for end in span))
    numbers = (batch, heads, key.shape[1], tokens, dim, x.membership.shape[-1],
               x.membership.shape[1], x.key_membership.shape[1], x.window, x.sinks,
               int(query.dtype == torch.bfloat16), mode, torch.get_num_threads(),
               extras)  # fmt: skip
    tensors = (query, key, value, out, lse, x.membership, x.key_membership)
    problem = _Problem(
        *(each.data_ptr() for each in tensors), ctypes.addressof(ends),
        None if extra is None else extra.data_ptr(),
        *((ctypes.c_int64 * 3)(*each.stride()[:3]) for each in tensors[:4]),
        *((ctypes.c_int64 * 4)(*each.stride()) for each in tensors[5:]),
        *(min(number, 2**31 - 1) for number in numbers), x.scale, None, None,
    )  # fmt: skip
    return problem, (*tensors, ends, extra)


def _rows(x: Tensor) -> Tensor:
    """With rows in one piece."""
    return x if x.stride(-1) == 1 else x.contiguous()
