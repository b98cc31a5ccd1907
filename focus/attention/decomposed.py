"""The fast exact path: group and local calls merged by log-sum-exp, as one autograd function.

Each branch's own backward is given the *merged* output and log-sum-exp: its probabilities are then
the whole softmax's, and the gradients of the branches simply add up. (A gradient through the merge
of two calls, left to autograd, would be dropped by FlashAttention kernels.)

Shape suffixes: B batch, T tokens, H query heads, Hk key heads, D head dimension, K groups.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from focus.attention.checks import Inputs, sink_tokens
from focus.attention.groups import Routing, Saved, groups_backward, groups_forward
from focus.attention.local import local_backward, local_forward
from focus.attention.plan import Lists, build_lists
from focus.attention.rows import rows_backward, rows_forward
from focus.attention.stairs import stairs_backward, stairs_forward


def make_lists(x: Inputs) -> Lists:
    """The lists of validated inputs: one routing for each sequence, or each key head of each."""
    routings = x.membership.shape[1]
    sinks = None
    if x.sinks:
        batch, tokens = x.query.shape[0], x.query.shape[2]
        sinks = sink_tokens(x.real, batch, tokens, x.sinks, x.query.device)
        sinks = sinks.repeat_interleave(routings, 0)
    keys = x.key_membership.flatten(0, 1) if x.separate_keys else None
    return build_lists(x.membership.flatten(0, 1), keys, sinks)


def decomposed_attention(x: Inputs, lists: Lists, spans: list[tuple[int, int]],
                         stripes: bool = False) -> Tensor:  # fmt: skip
    """Attention of validated inputs, (B, H, T, D).

    Args:
        x: validated inputs on CPU.
        lists: from :func:`make_lists`.
        spans: first and last + 1 real token of every sequence.
        stripes: compute all pairs under a mask instead of group and local calls.
    """
    out: Tensor = _Attention.apply(x.query, x.key, x.value, x, lists, spans, stripes)
    return out


class _Attention(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor, x: Inputs, lists: Lists,
                spans: list[tuple[int, int]], stripes: bool) -> Tensor:  # fmt: skip
        out = torch.empty_like(query)
        lse_type = torch.promote_types(query.dtype, torch.float32)
        lse = torch.empty(query.shape[:3], dtype=lse_type)
        for b, (start, stop) in enumerate(spans):
            out[b, :, :start] = 0
            out[b, :, stop:] = 0
        for b, heads, _, routing in _routings(query, key, value, x, spans):
            own_out, own_lse = out[b, heads], lse[b, heads]
            if stripes:
                rows_forward(routing, *_codes(lists, routing), own_out, own_lse)
                continue
            local_forward(routing, lists, own_out, own_lse)
            merge = groups_forward if lists.aligned else stairs_forward
            merge(routing, lists, own_out, own_lse)
        ctx.save_for_backward(query, key, value, out, lse)
        ctx.rest = x, lists, spans, stripes
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        query, key, value, out, lse = ctx.saved_tensors
        x, lists, spans, stripes = ctx.rest
        grads = [torch.zeros_like(tensor) for tensor in (query, key, value)]
        for b, heads, key_heads, routing in _routings(query, key, value, x, spans):
            saved = Saved(
                grad[b, heads], out[b, heads], lse[b, heads], grads[0][b, heads],
                grads[1][b, key_heads], grads[2][b, key_heads],
            )  # fmt: skip
            if stripes:
                rows_backward(routing, *_codes(lists, routing), saved)
                continue
            local_backward(routing, lists, saved)
            add = groups_backward if lists.aligned else stairs_backward
            add(routing, lists, saved)
        return *grads, None, None, None, None


def _codes(lists: Lists, routing: Routing) -> tuple[Tensor, Tensor]:
    rows = slice(routing.base, routing.base + routing.query.shape[1])
    return lists.query_codes_XK[rows], lists.key_codes_XK[rows]


def _routings(
    query: Tensor, key: Tensor, value: Tensor, x: Inputs, spans: list[tuple[int, int]]
) -> Iterator[tuple[int, slice, slice, Routing]]:
    """Every sequence's routings: its index, its query heads, its key heads, its tensors."""
    batch, routings, tokens, groups = x.membership.shape
    heads, key_heads = query.shape[1] // routings, key.shape[1] // routings
    for b in range(batch):
        for r in range(routings):
            own = slice(r * heads, (r + 1) * heads)
            own_keys = slice(r * key_heads, (r + 1) * key_heads)
            n = b * routings + r
            yield b, own, own_keys, Routing(
                query[b, own], key[b, own_keys], value[b, own_keys], *spans[b], n * tokens,
                n * groups, groups, x.window, x.sinks, x.scale,
            )  # fmt: skip
