"""Calls the compiled ``log`` gate (``native/gated.cpp``): float32 and bfloat16 on CPU.

Shape suffixes: B batch, T tokens, H query heads, D head dimension, K groups.
"""

from __future__ import annotations

import ctypes

import torch
from torch import Tensor

from focus.attention.native.build import library, needed
from focus.attention.native.call import limits, real_spans
from focus.attention.train.blocks import Inputs, Rule

DTYPES = (torch.float32, torch.bfloat16)
DONE = 0
_INPUTS = ("query", "key", "value", "query_groups", "key_groups")
_TENSORS = (*_INPUTS, "out", "lse", "d_out", *(f"d_{name}" for name in _INPUTS), "spans")
_NUMBERS = ("batch", "heads", "key_heads", "query_routings", "key_routings", "tokens", "dim",
            "groups", "window", "sinks", "threads")  # fmt: skip


class _Problem(ctypes.Structure):
    """As in gated.h."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in _TENSORS),
        *((name, ctypes.c_int32) for name in _NUMBERS),
        ("scale", ctypes.c_float),
    )


def spans_of(x: Inputs, rule: Rule) -> Tensor | None:
    """First and last + 1 real token of every sequence, (B, 2) int32, where the kernel can compute
    the call; else None."""
    tokens, dim = x.query.shape[2:]
    plain = rule.gate == "log" and rule.softcap is None and not rule.dropout
    unmasked = x.further is None and (rule.limit is None or rule.limit >= tokens)
    on_cpu = x.query.device.type == "cpu" and x.query.dtype in DTYPES
    if not (plain and unmasked and on_cpu):
        return None
    kernel = library()
    if kernel is None or dim % limits(kernel)[0]:
        return None
    spans = real_spans(x.query, x.real)
    return None if spans is None else torch.tensor(spans, dtype=torch.int32, device="cpu")


def forward(x: Inputs, rule: Rule, spans: Tensor) -> tuple[Tensor, Tensor]:
    """out (B, H, T, D) and the base-2 log-sum-exp (B, H, T), float32; padding gives 0, and from a
    sequence's first token on that is not finite all is NaN.

    Raises:
        MemoryError: there is no room for the tiles.
    """
    inputs = _wide(x)
    out = x.query.new_zeros(x.query.shape, dtype=torch.float32)
    tensors = {**inputs, "out": out, "lse": out.new_zeros(out.shape[:3]), "spans": spans}
    _run("focus_gate_forward", tensors, rule)
    return out, tensors["lse"]


def backward(x: Inputs, rule: Rule, spans: Tensor, grad: Tensor, out: Tensor, lse: Tensor
             ) -> list[Tensor]:  # fmt: skip
    """Gradients in the five inputs, float32; NaN where the log-sum-exp is.

    Raises:
        MemoryError: there is no room for the tiles.
    """
    sizes = [out.shape[3]] * 3 + [x.query_groups.shape[3]] * 2
    grads = {
        f"d_{name}": out.new_zeros(*out.shape[:3], size)
        for name, size in zip(_INPUTS, sizes, strict=True)
    }
    tensors = {
        **_wide(x), **grads, "out": out.contiguous(), "lse": lse.contiguous(), "spans": spans,
        "d_out": grad.to(torch.float32).contiguous(),
    }  # fmt: skip
    _run("focus_gate_backward", tensors, rule)
    # The kernel gives one for every query head.
    return [
        grads[f"d_{name}"].unflatten(1, (getattr(x, name).shape[1], -1)).sum(2) for name in _INPUTS
    ]


def _wide(x: Inputs) -> dict[str, Tensor]:
    return {name: getattr(x, name).to(torch.float32).contiguous() for name in _INPUTS}


def _run(name: str, tensors: dict[str, Tensor], rule: Rule) -> None:
    batch, heads, tokens, dim = tensors["query"].shape
    numbers = (batch, heads, tensors["key"].shape[1], tensors["query_groups"].shape[1],
               tensors["key_groups"].shape[1], tokens, dim, tensors["query_groups"].shape[3],
               rule.window, rule.sinks, torch.get_num_threads())  # fmt: skip
    places = (tensors[each].data_ptr() if each in tensors else None for each in _TENSORS)
    problem = _Problem(*places, *(min(number, 2**31 - 1) for number in numbers), rule.scale)
    if int(getattr(needed(), name)(ctypes.byref(problem))) != DONE:
        raise MemoryError("the gate: no memory for its tiles; shorten the batch or the texts")
