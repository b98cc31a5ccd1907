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
from focus.attention.triton.call import MOST_DIM, MOST_GROUPS, MOST_PROGRAMS, installed, power

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
    fits = fits and query.shape[0] * query.shape[1] <= MOST_PROGRAMS
    known = query.is_cuda and query.dtype in DTYPES and installed() and torch.version.hip is None
    return known and fits and torch.cuda.get_device_capability(query.device) >= AMPERE


def forward(x: Inputs, rule: Rule) -> tuple[Tensor, Tensor]:
    """out (B, H, T, D) and the base-2 log-sum-exp (B, H, T), float32; rows without any pair are 0
    and infinity."""
    from focus.attention.triton import gated

    out = x.query.new_empty(x.query.shape, dtype=torch.float32)
    lse = out.new_empty(out.shape[:3])
    _Launcher(x, rule, backward=False).over_queries(gated.attend, out, lse)
    return out, lse


def backward(x: Inputs, rule: Rule, grad: Tensor, out: Tensor, lse: Tensor) -> list[Tensor]:
    """Gradients in query, key, value, query_groups and key_groups, float32; under the hard mask
    those of groups are zero."""
    from focus.attention.triton import gated

    grad = cleared(grad.to(torch.float32), x.real)
    known = grad.to(x.value.dtype).contiguous(), lse.contiguous(), (grad * out).sum(-1)
    like, sizes = x.query, (*x.query.shape[:3], x.query_groups.shape[3])
    d_query, d_key, d_value = (like.new_empty(like.shape, dtype=torch.float32) for _ in range(3))
    if rule.gate == "hard":  # which nothing is written to
        of_queries = of_keys = d_query.new_zeros(1).expand(sizes)
    else:
        of_queries, of_keys = d_query.new_empty(sizes), d_query.new_empty(sizes)
    launch = _Launcher(x, rule, backward=True)
    launch.over_queries(gated.slopes_of_queries, *known, d_query, of_queries)
    launch.over_keys(gated.slopes_of_keys, *known, d_key, d_value, of_keys)
    found = d_query, d_key, d_value, of_queries, of_keys
    inputs = x.query, x.key, x.value, x.query_groups, x.key_groups
    return [for_heads(own, each.shape[1]) for own, each in zip(found, inputs, strict=True)]


def for_heads(x: Tensor, heads: int) -> Tensor:
    """Added up over the query heads that share one of so many."""
    return x if x.shape[1] == heads else x.unflatten(1, (heads, -1)).sum(2)


def backward_of_mask(grad: Tensor, x: Masked, out: Tensor, lse: Tensor
                     ) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Gradients in query, key and value under the hard mask, of settled inputs, whatever computed
    the output and its natural log-sum-exp."""
    groups = x.membership.float(), x.key_membership.float()
    own, rule = (Inputs(x.query, x.key, x.value, *groups, x.real),
                 Rule("hard", x.window, x.sinks, x.scale))  # fmt: skip
    d_query, d_key, d_value, *_ = backward(own, rule, grad, out, lse * LOG2_E)
    if x.extra is not None:
        query, key, value = (cleared(each, x.real) for each in (x.query, x.key, x.value))
        plain = replace(x, query=query, key=key, value=value)
        add_extra_grads(cleared(grad, x.real), plain, out, lse, (d_query, d_key, d_value))
    return tuple(each.to(grad.dtype) for each in (d_query, d_key, d_value))  # type: ignore[return-value]


class _Launcher:
    """What all kernels of a call are given, made once."""

    def __init__(self, x: Inputs, rule: Rule, *, backward: bool) -> None:
        batch, self.heads, self.tokens, dim = x.query.shape
        given = x.query, x.key, x.value, x.query_groups, x.key_groups
        flags = 2 * sink_tokens(x.real, batch, self.tokens, rule.sinks, x.query.device).byte()
        flags = (flags + (1 if x.real is None else x.real)).contiguous()
        self.tensors = [*(cleared(each, x.real).contiguous() for each in given), flags]
        window, limit = (FAR if each is None else min(each, FAR)
                         for each in (rule.window, rule.limit))  # fmt: skip
        shared = (each.shape[1] for each in (x.query, x.key, x.query_groups, x.key_groups))
        self.numbers = window, limit, rule.scale, *shared
        groups = x.query_groups.shape[3]
        self.rows, self.keys, options = sizes(dim, groups, backward)
        self.constants = {"D": dim, "K": groups, "GATE": GATES.index(rule.gate),
                          "BLOCK_M": self.rows, "BLOCK_N": self.keys, "BLOCK_D": power(dim),
                          "BLOCK_K": power(groups), **options}  # fmt: skip

    def over_queries(self, kernel: Any, *tensors: Tensor) -> None:
        """A program for each block of queries."""
        self._launch(kernel, self.rows, tensors)

    def over_keys(self, kernel: Any, *tensors: Tensor) -> None:
        """A program for each block of keys."""
        self._launch(kernel, self.keys, tensors)

    def _launch(self, kernel: Any, rows: int, tensors: tuple[Tensor, ...]) -> None:
        query = self.tensors[0]
        with torch.cuda.device_of(query):
            kernel[(-(-self.tokens // rows), len(query) * self.heads)](
                *self.tensors, *tensors, self.tokens, *self.numbers, **self.constants
            )


def sizes(dim: int, groups: int, backward: bool) -> tuple[int, int, dict[str, int]]:
    """Queries and keys of a block, and what the compiler is told: what fits into 99 KB of shared
    memory and keeps most in registers."""
    if dim > 128 or (dim > 64 and groups > 32):
        return 32, 32, {"num_warps": 4, "num_stages": 1}
    return 64, 64, {"num_warps": 8 if backward else 4, "num_stages": 1}
