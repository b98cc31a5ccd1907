"""Calls the compiled kernel: tensors to pointers, and its refusals to errors.

Shape suffixes: B batch, T tokens, H query heads, Hk key heads, D head dimension, K groups.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.forward_ad import unpack_dual
from torch.autograd.function import once_differentiable

from focus.attention.checks import (
    Inputs,
    check_arguments,
    check_contents,
    for_query_heads,
    real_spans,
)
from focus.attention.decomposed import decomposed_backward, plan_of
from focus.attention.native.build import library

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


def refusal(x: Inputs) -> str | None:
    """Why the kernel cannot compute this call, or None."""
    if x.query.device.type != "cpu":
        return f"query: is on {x.query.device}; the compiled kernel is for CPU"
    if x.query.dtype not in DTYPES:
        return f"query: is {x.query.dtype}; the compiled kernel takes float32 and bfloat16"
    traced = in_a_way((x.query, x.key, x.value))
    if traced is not None:
        return traced
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


def in_a_way(tensors: Iterable[Tensor]) -> str | None:
    """Why code that torch cannot look into may not be called with these now, or None."""
    if torch.compiler.is_compiling() or torch.jit.is_tracing():
        return "backend: the compiled kernel cannot be traced"
    if any(unpack_dual(each).tangent is not None for each in tensors):
        return "backend: the compiled kernel has no forward-mode derivative"
    return None


def usable(tensors: Sequence[Tensor]) -> ctypes.CDLL | None:
    """The compiled kernel, where it takes the device, dtype and head dimension of the first of the
    tensors and none of them is traced; else None."""
    query = tensors[0]
    if query.device.type != "cpu" or query.dtype not in DTYPES or in_a_way(tensors) is not None:
        return None
    kernel = library()
    whole = kernel is not None and query.shape[-1] % limits(kernel)[0] == 0
    return kernel if whole else None


@functools.cache
def limits(kernel: ctypes.CDLL) -> tuple[int, ...]:
    """Lanes of a vector, most groups, greatest head dimension."""
    found = (ctypes.c_int32 * 3)()
    kernel.focus_limits(found)
    return tuple(found)


def attention(x: Inputs, spans: list[tuple[int, int]], mode: int = AUTO) -> Tensor:
    """Attention of inputs that :func:`refusal` allows, (B, H, T, D); differentiable in query, key
    and value, by the decomposition's backward pass.

    Raises:
        ValueError: see :func:`focus.attention.checks.check_contents`.
    """
    tensors = (x.query, x.key, x.value)
    if not (torch.is_grad_enabled() and any(each.requires_grad for each in tensors)):
        return _checked(x, spans, mode)[0]
    out: Tensor = _Attention.apply(*tensors, x, spans, mode)
    return out


def attention_by(
    query: Tensor, key: Tensor, value: Tensor, *, mode: int, membership: Tensor, window: int = 128,
    sinks: int = 0, scale: float | None = None, key_padding_mask: Tensor | None = None,
    key_membership: Tensor | None = None, extra_keys: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """As :func:`focus.focus_attention`, in one of the kernel's ways: ``LISTS`` or ``DENSE``."""
    x = check_arguments(
        query, key, value, membership, window, sinks, scale, key_padding_mask, key_membership,
        extra_keys,
    )  # fmt: skip
    spans, why = real_spans(x), refusal(x)
    if spans is None or why is not None:
        raise ValueError(why or "key_padding_mask: has padding between real tokens")
    return attention(x, spans, mode)


class _Attention(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor, x: Inputs,
                spans: list[tuple[int, int]], mode: int) -> Tensor:  # fmt: skip
        out, lse = _checked(x, spans, mode)
        # Memberships too, so that one that was refilled in place meanwhile is noticed.
        ctx.save_for_backward(query, key, value, x.membership, x.key_membership, x.real, out, lse)
        ctx.rest = x.separate_keys, x.window, x.sinks, x.scale, x.extra, spans
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        query, key, value, membership, key_membership, real, out, lse = ctx.saved_tensors
        separate, window, sinks, scale, extra, spans = ctx.rest
        # Keys and values are repeated here where query heads are routed apart.
        own = check_contents(Inputs(query, key, value, membership, key_membership, separate, 0,
                                    real, window, sinks, scale, extra))  # fmt: skip
        grads = decomposed_backward(
            grad, query, own.key, own.value, out, lse, own, plan_of(own, spans)
        )
        d_key, d_value = (each.unflatten(1, (key.shape[1], -1)).sum(2) for each in grads[1:])
        return grads[0], d_key, d_value, None, None, None


def _checked(x: Inputs, spans: list[tuple[int, int]], mode: int) -> tuple[Tensor, Tensor]:
    status, out, lse = forward(x, spans, mode)
    if status != DONE:
        check_contents(x)  # says what the kernel has seen
        raise RuntimeError(f"the compiled kernel answers {status}; please report it")
    return out, lse


def forward(
    x: Inputs, spans: list[tuple[int, int]], mode: int = AUTO,
    seconds: dict[str, float] | None = None,
) -> tuple[int, Tensor, Tensor]:  # fmt: skip
    """Status, out (B, H, T, D) and lse (B, H, T) float32.

    Args:
        x: neither finite values nor a group for every token need have been checked: the kernel
            sees them anyway, and answers ``NOT_FINITE`` or ``NO_GROUP``.
        spans: first and last + 1 real token of every sequence.
        mode: how; the results are the same.
        seconds: filled with what each of :data:`PARTS` took; the last is called ``every pair``
            where no lists were made.

    Finite inputs whose logits leave float32's range (beyond 3e38) lose keys.
    """
    kernel = library()
    if kernel is None:
        raise RuntimeError("there is no compiled kernel; ask refusal() first")
    batch, heads, tokens, dim = x.query.shape
    query, key, value = (_rows(each.detach()) for each in (x.query, x.key, x.value))
    # Laid out as models use it next: heads beside each other.
    out = query.new_empty(batch, tokens, heads, dim).transpose(1, 2)
    lse = query.new_empty(batch, heads, tokens, dtype=torch.float32)  # whatever the default is
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
    took, chosen = (ctypes.c_double * len(PARTS))(), ctypes.c_int32()
    problem = _Problem(
        *(each.data_ptr() for each in tensors), ctypes.addressof(ends),
        None if extra is None else extra.data_ptr(),
        *((ctypes.c_int64 * 3)(*each.stride()[:3]) for each in tensors[:4]),
        *((ctypes.c_int64 * 4)(*each.stride()) for each in tensors[5:]),
        *(min(number, 2**31 - 1) for number in numbers), x.scale, ctypes.addressof(took),
        ctypes.addressof(chosen),
    )  # fmt: skip
    status = int(kernel.focus_attention_forward(ctypes.byref(problem)))
    if seconds is not None:
        near = "window" if chosen.value == LISTS else "every pair"
        seconds.update(zip((*PARTS[:-1], near), took, strict=True))
    if status == NO_MEMORY:
        raise MemoryError("focus_attention: no memory for the lists of groups; shorten the batch")
    if status not in (DONE, NOT_FINITE, NO_GROUP):
        raise RuntimeError(f"the compiled kernel answers {status}; please report it")
    return status, out, lse


def _rows(x: Tensor) -> Tensor:
    """With rows in one piece."""
    return x if x.stride(-1) == 1 else x.contiguous()
