"""Calls Triton's kernels of the gates (``triton/gated.py``): float16 and bfloat16 on CUDA.

Shape suffixes: B batch, T tokens, H query heads, D head dimension, K groups.
"""

from __future__ import annotations

from dataclasses import replace
from math import e, log2
from typing import Any

import torch
from torch import Tensor

from focus.attention.checks import Inputs as Masked
from focus.attention.checks import cleared, sink_tokens
from focus.attention.extra import add_extra_grads
from focus.attention.train.blocks import Inputs, Rule
from focus.attention.triton.call import MOST_DIM, MOST_GROUPS, installed, power

GATES = "log", "eq2", "hard"  # by their number in gated.py
DTYPES = (torch.float16, torch.bfloat16)
AMPERE = 8, 0  # whose matrix units are the first that take assignments
LOG2_E = log2(e)
FAR = 2**30  # a window or limit beyond any text


def computes(x: Inputs, rule: Rule) -> bool:
    """Whether the kernels can compute a call."""
    plain = rule.softcap is None and not rule.dropout and x.further is None
    return plain and able(x.query, x.query_groups)


def able(query: Tensor, groups: Tensor) -> bool:
    """Whether the kernels take tensors of this device, dtype and size."""
    fits = query.shape[3] <= MOST_DIM and groups.shape[3] <= MOST_GROUPS
    known = query.is_cuda and query.dtype in DTYPES and installed()
    return known and fits and torch.cuda.get_device_capability(query.device) >= AMPERE


def forward(x: Inputs, rule: Rule) -> tuple[Tensor, Tensor]:
    """out (B, H, T, D) and the base-2 log-sum-exp (B, H, T), float32; rows without any pair are 0
    and infinity."""
    from focus.attention.triton import gated

    out = x.query.new_empty(x.query.shape, dtype=torch.float32)
    lse = out.new_empty(out.shape[:3])
    m, n, options = _sizes(x.query.shape[3], backward=False)
    _run(gated.attend, m, x, rule, out, lse, BLOCK_M=m, BLOCK_N=n, **options)
    return out, lse


def backward(x: Inputs, rule: Rule, grad: Tensor, out: Tensor, lse: Tensor) -> list[Tensor]:
    """Gradients in query, key, value, query_groups and key_groups, float32."""
    from focus.attention.triton import gated

    grad = cleared(grad.to(torch.float32), x.real)
    known = grad.to(x.value.dtype).contiguous(), lse.contiguous(), (grad * out).sum(-1)
    like, groups = x.query, x.query_groups.shape[3]
    d_query, d_key, d_value = (like.new_empty(like.shape, dtype=torch.float32) for _ in range(3))
    of_queries, of_keys = (d_query.new_empty(*like.shape[:3], groups) for _ in range(2))
    m, n, options = _sizes(like.shape[3], backward=True)
    options |= {"BLOCK_M": m, "BLOCK_N": n}
    _run(gated.slopes_of_queries, m, x, rule, *known, d_query, of_queries, **options)
    _run(gated.slopes_of_keys, n, x, rule, *known, d_key, d_value, of_keys, **options)
    found = d_query, d_key, d_value, of_queries, of_keys
    inputs = x.query, x.key, x.value, x.query_groups, x.key_groups
    return [own.unflatten(1, (each.shape[1], -1)).sum(2)
            for own, each in zip(found, inputs, strict=True)]  # fmt: skip


def backward_of_mask(grad: Tensor, x: Masked, out: Tensor, lse: Tensor
                     ) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Gradients in query, key and value under the hard mask, of settled inputs, whatever computed
    the output and its natural log-sum-exp."""
    query, key, value = (cleared(each, x.real) for each in (x.query, x.key, x.value))
    groups = x.membership.float(), x.key_membership.float()
    own, rule = Inputs(query, key, value, *groups, x.real), Rule("hard", x.window, x.sinks, x.scale)
    d_query, d_key, d_value, *_ = backward(own, rule, grad, out, lse * LOG2_E)
    plain = replace(x, query=query, key=key, value=value)
    add_extra_grads(cleared(grad, x.real), plain, out, lse, (d_query, d_key, d_value))
    return tuple(each.to(grad.dtype) for each in (d_query, d_key, d_value))  # type: ignore[return-value]


def _run(kernel: Any, rows: int, x: Inputs, rule: Rule, *tensors: Tensor, **options: int) -> None:
    """Of each program ``rows`` queries, or keys."""
    batch, heads, tokens, dim = x.query.shape
    attended = [cleared(each, x.real).contiguous() for each in (x.query, x.key, x.value)]
    groups = [cleared(each, x.real).contiguous() for each in (x.query_groups, x.key_groups)]
    flags = 2 * sink_tokens(x.real, batch, tokens, rule.sinks, x.query.device).to(torch.uint8)
    flags = (flags + (1 if x.real is None else x.real)).contiguous()
    window, limit = (min(FAR if each is None else each, FAR) for each in (rule.window, rule.limit))
    with torch.cuda.device_of(x.query):
        kernel[(-(-tokens // rows), batch * heads)](
            *attended, *groups, flags, *tensors, tokens, window, limit, rule.scale, heads,
            x.key.shape[1], x.query_groups.shape[1], x.key_groups.shape[1], D=dim,
            K=groups[0].shape[3], GATE=GATES.index(rule.gate), BLOCK_D=power(dim),
            BLOCK_K=power(groups[0].shape[3]), **options,
        )  # fmt: skip


def _sizes(dim: int, backward: bool) -> tuple[int, int, dict[str, int]]:
    """Queries and keys of a block, and what the compiler is told: as few registers as it spills."""
    if dim > 128:
        return 32, 32, {"num_warps": 4, "num_stages": 1}
    return 64, 64, {"num_warps": 8 if backward else 4, "num_stages": 1}
