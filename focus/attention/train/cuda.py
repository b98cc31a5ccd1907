"""Calls Triton's kernels of the gates ``log`` and ``eq2`` (``triton/gated.py``): float16 and
bfloat16 on CUDA.

Shape suffixes: B batch, T tokens, H query heads, D head dimension, K groups.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from focus.attention.checks import cleared, sink_tokens
from focus.attention.train.blocks import Inputs, Rule
from focus.attention.triton.call import MOST_DIM, MOST_GROUPS, installed, power

DTYPES = (torch.float16, torch.bfloat16)
AMPERE = 8, 0  # whose matrix units are the first that take assignments
FAR = 2**30  # a window or limit beyond any text


def computes(x: Inputs, rule: Rule) -> bool:
    """Whether the kernels can compute a call."""
    plain = rule.gate in ("log", "eq2") and rule.softcap is None and not rule.dropout
    fits = x.query.shape[3] <= MOST_DIM and x.query_groups.shape[3] <= MOST_GROUPS
    known = x.query.is_cuda and x.query.dtype in DTYPES and installed()
    if not (known and plain and fits and x.further is None):
        return False
    return torch.cuda.get_device_capability(x.query.device) >= AMPERE


def forward(x: Inputs, rule: Rule) -> tuple[Tensor, Tensor]:
    """out (B, H, T, D) and the base-2 log-sum-exp (B, H, T), float32; rows without any pair are 0
    and infinity."""
    from focus.attention.triton import gated

    out = x.query.new_empty(x.query.shape, dtype=torch.float32)
    lse = out.new_empty(out.shape[:3])
    _run(gated.attend, x, rule, (out, lse), backward=False)
    return out, lse


def backward(x: Inputs, rule: Rule, grad: Tensor, out: Tensor, lse: Tensor) -> list[Tensor]:
    """Gradients in query, key, value, query_groups and key_groups, float32."""
    from focus.attention.triton import gated

    grad = cleared(grad.to(torch.float32), x.real)
    known = grad.to(x.value.dtype).contiguous(), lse.contiguous(), (grad * out).sum(-1)
    like, groups = x.query, x.query_groups.shape[3]
    d_query, d_key, d_value = (like.new_empty(like.shape, dtype=torch.float32) for _ in range(3))
    of_queries, of_keys = (d_query.new_empty(*like.shape[:3], groups) for _ in range(2))
    _run(gated.slopes_of_queries, x, rule, (*known, d_query, of_queries), backward=True)
    _run(gated.slopes_of_keys, x, rule, (*known, d_key, d_value, of_keys), backward=True)
    found = d_query, d_key, d_value, of_queries, of_keys
    inputs = x.query, x.key, x.value, x.query_groups, x.key_groups
    return [own.unflatten(1, (each.shape[1], -1)).sum(2)
            for own, each in zip(found, inputs, strict=True)]  # fmt: skip


def _run(kernel: Any, x: Inputs, rule: Rule, tensors: tuple[Tensor, ...], *, backward: bool
         ) -> None:  # fmt: skip
    batch, heads, tokens, dim = x.query.shape
    attended = [cleared(each, x.real).contiguous() for each in (x.query, x.key, x.value)]
    groups = [cleared(each, x.real).contiguous() for each in (x.query_groups, x.key_groups)]
    flags = 2 * sink_tokens(x.real, batch, tokens, rule.sinks, x.query.device).to(torch.uint8)
    flags = flags + 1 if x.real is None else flags + x.real
    block_m, block_n, options = _sizes(dim, backward)
    rows = block_n if len(tensors) == 6 else block_m  # a program's own: of slopes_of_keys, keys
    window, limit = (min(FAR if each is None else each, FAR) for each in (rule.window, rule.limit))
    with torch.cuda.device_of(x.query):
        kernel[(-(-tokens // rows), batch * heads)](
            *attended, *groups, flags, *tensors, tokens, window, limit, rule.scale, heads,
            x.key.shape[1], x.query_groups.shape[1], x.key_groups.shape[1], D=dim,
            K=groups[0].shape[3], EQ2=rule.gate == "eq2", BLOCK_M=block_m, BLOCK_N=block_n,
            BLOCK_D=power(dim), BLOCK_K=power(groups[0].shape[3]), **options,
        )  # fmt: skip


def _sizes(dim: int, backward: bool) -> tuple[int, int, dict[str, int]]:
    """Queries and keys of a block, and what the compiler is told: as few registers as it spills."""
    if dim > 128:
        return 32, 32, {"num_warps": 4, "num_stages": 1}
    return 64, 64, {"num_warps": 8 if backward else 4, "num_stages": 1}
