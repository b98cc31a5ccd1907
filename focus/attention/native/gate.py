"""Calls the compiled gate: attention whose distant weights are multiplied by affinities.

Shape suffixes: B batch, T tokens, H query heads, Hk key heads, Hq and Hr routings of queries and
keys, D head dimension, K groups.
"""

from __future__ import annotations

import ctypes
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from focus.attention.native.build import library
from focus.attention.native.call import usable

DONE, NO_MEMORY, LEFT = range(3)  # the last: to torch
_TENSORS = ("query", "key", "value", "own", "others", "out", "lse", "d_out", "d_query", "d_key",
            "d_value", "d_own", "d_others")  # fmt: skip
_NUMBERS = ("batch", "heads", "key_heads", "own_routings", "other_routings", "tokens", "dim",
            "groups", "window", "sinks", "threads")  # fmt: skip


class _Problem(ctypes.Structure):
    """As in gated.cpp."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in _TENSORS),
        *((name, ctypes.c_int32) for name in _NUMBERS),
        ("scale", ctypes.c_float),
    )


def gated(query: Tensor, key: Tensor, value: Tensor, own: Tensor, others: Tensor, *, window: int,
          sinks: int, scale: float) -> Tensor | None:  # fmt: skip
    """Causal attention with logit + log(affinity) of distant pairs, by the compiled kernel.

    Args:
        query: (B, H, T, D); key, value: (B, Hk, T, D), float32 or bfloat16.
        own, others: (B, Hq, T, K) and (B, Hr, T, K) float32 assignments of queries and keys; H is a
            multiple of Hk, Hq and Hr.
        window, sinks, scale: as in :func:`focus.focus_attention`.

    Returns:
        (B, H, T, D), differentiable in all five tensors, memory O(T (D + K)); None where the
        kernel cannot compute it: there is none, another device or dtype, a head dimension that is
        not whole vectors, tracing, forward-mode derivatives, an input that is not finite, or a row
        whose weights all vanish.

    Raises:
        ValueError: shapes that do not fit.
        MemoryError: there is no room for the tiles.
    """
    tensors = (query, key, value, own, others)
    _check(*tensors)
    if usable(tensors) is None:
        return None
    status: list[int] = []
    out: Tensor = _Gated.apply(*tensors, (window, sinks, scale), status)
    return out if status == [DONE] else None


def _check(query: Tensor, key: Tensor, value: Tensor, own: Tensor, others: Tensor) -> None:
    for name, x, width in (("key", key, query), ("value", value, key), ("own", own, own),
                           ("others", others, own)):  # fmt: skip
        same = x.shape[0] == query.shape[0] and x.shape[2:] == (query.shape[2], width.shape[3])
        if not same or query.shape[1] % x.shape[1]:
            raise ValueError(f"{name}: {tuple(x.shape)} does not fit queries {tuple(query.shape)}")


class _Gated(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor, own: Tensor, others: Tensor,
                rule: tuple[int, int, float], status: list[int]) -> Tensor:  # fmt: skip
        inputs = _wide(query, key, value, own, others)
        out = torch.empty_like(inputs["query"])
        lse = out.new_empty(out.shape[:3])
        status.append(_run("focus_gate_forward", {**inputs, "out": out, "lse": lse}, rule))
        # The wide result: what it loses to bfloat16 would weigh in every gradient.
        ctx.save_for_backward(query, key, value, own, others, out, lse)
        ctx.rule = rule
        return out.to(query.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        *tensors, out, lse = ctx.saved_tensors
        inputs = _wide(*tensors)
        sides = [out.new_empty(*out.shape[:3], tensors[3].shape[-1]) for _ in range(2)]
        grads = dict(zip(_TENSORS[-5:], [torch.empty_like(out) for _ in range(3)] + sides,
                         strict=True))  # fmt: skip
        d_out = grad.to(torch.float32).contiguous()
        _run("focus_gate_backward", {**inputs, "out": out, "lse": lse, "d_out": d_out, **grads},
             ctx.rule)  # fmt: skip
        found = (
            each.unflatten(1, (like.shape[1], -1)).sum(2).to(like.dtype)
            for each, like in zip(grads.values(), tensors, strict=True)
        )
        return *found, None, None


def _wide(*tensors: Tensor) -> dict[str, Tensor]:
    made = (each.detach().to(torch.float32).contiguous() for each in tensors)
    return dict(zip(_TENSORS, made, strict=False))


def _run(name: str, tensors: dict[str, Tensor], rule: tuple[int, int, float]) -> int:
    window, sinks, scale = rule
    batch, heads, tokens, dim = tensors["query"].shape
    numbers = (batch, heads, tensors["key"].shape[1], tensors["own"].shape[1],
               tensors["others"].shape[1], tokens, dim, tensors["own"].shape[-1], window, sinks,
               torch.get_num_threads())  # fmt: skip
    places = (tensors[each].data_ptr() if each in tensors else None for each in _TENSORS)
    problem = _Problem(*places, *(min(number, 2**31 - 1) for number in numbers), scale)
    status = int(getattr(library(), name)(ctypes.byref(problem)))
    if status == NO_MEMORY:
        raise MemoryError("the gate: no memory for its tiles; shorten the batch or the texts")
    return status
