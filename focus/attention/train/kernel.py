"""Calls the compiled ``log`` gate (``native/gated.cpp``): float32 and bfloat16 on CPU.

Shape suffixes: B batch, T tokens, H query heads, D head dimension, K groups.
"""

from __future__ import annotations

import struct

import torch
from torch import Tensor

from focus.attention.native.build import library, places, run
from focus.attention.native.call import DTYPES, limits, real_spans
from focus.attention.train.blocks import Inputs, Rule

INPUTS = ("query", "key", "value", "query_groups", "key_groups")
_PROBLEM = struct.Struct("@14P11if")  # as in gated.h


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
    sequence's first token on that is not finite all is NaN."""
    out = x.query.new_zeros(x.query.shape, dtype=torch.float32)
    lse = out.new_zeros(out.shape[:3])
    _run("focus_gate_forward", x, rule, spans, out, lse, None, *[None] * len(INPUTS))
    return out, lse


def backward(x: Inputs, rule: Rule, spans: Tensor, grad: Tensor, out: Tensor, lse: Tensor
             ) -> list[Tensor]:  # fmt: skip
    """Gradients in the five inputs, float32; NaN where the log-sum-exp is."""
    inputs = [getattr(x, name) for name in INPUTS]
    # The kernel gives one for every query head.
    grads = [out.new_zeros(*out.shape[:3], each.shape[3]) for each in inputs]
    grad = grad.to(torch.float32).contiguous()
    _run("focus_gate_backward", x, rule, spans, out.contiguous(), lse.contiguous(), grad, *grads)
    return [
        found.unflatten(1, (each.shape[1], -1)).sum(2)
        for found, each in zip(grads, inputs, strict=True)
    ]


def _run(name: str, x: Inputs, rule: Rule, spans: Tensor, *tensors: Tensor | None) -> None:
    """Tensors: out, lse, and backwards the out's gradient and room for those of the inputs."""
    inputs = [getattr(x, each).to(torch.float32).contiguous() for each in INPUTS]
    batch, heads, tokens, dim = x.query.shape
    window, sinks = (min(each, 2**31 - 1) for each in (rule.window, rule.sinks))
    run(name, _PROBLEM.pack(
        *places([*inputs, *tensors, spans]), batch, heads, x.key.shape[1], x.query_groups.shape[1],
        x.key_groups.shape[1], tokens, dim, x.query_groups.shape[3], window, sinks,
        torch.get_num_threads(), rule.scale,
    ))  # fmt: skip
