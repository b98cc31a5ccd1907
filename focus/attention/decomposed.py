"""The fast exact path: group and local calls merged by log-sum-exp, as one autograd function.

Each branch's own backward is given the *merged* output and log-sum-exp: its probabilities are then
the whole softmax's, and the gradients of the branches simply add up. (A gradient through the merge
of two calls, left to autograd, would be dropped by FlashAttention kernels.)

Shape suffixes: B batch, T tokens, H query heads, Hk key heads, D head dimension, K groups,
R routings (B, or B * Hk), X rows (R * T).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from focus.attention.checks import Inputs, sink_tokens
from focus.attention.cost import choose, choose_lists, keeps_all
from focus.attention.extra import add_extra, add_extra_grads
from focus.attention.groups import (
    Codes,
    Routing,
    Saved,
    groups_backward,
    groups_forward,
    routing_heads,
)
from focus.attention.local import local_backward, local_forward
from focus.attention.plan import Lists, build_lists, build_pattern_lists
from focus.attention.rows import (
    Stack,
    StackGrads,
    causal_backward,
    causal_forward,
    rows_backward,
    rows_forward,
    whole_forward,
)
from focus.attention.stairs import stairs_backward, stairs_forward


@dataclass(frozen=True)
class Plan:
    """What to compute.

    path: ``causal`` (every pair is kept), ``stripes`` (every pair under a mask) or ``lists`` (group
    and local calls); spans: first and last + 1 real token of every sequence; query_codes and
    key_codes: (X, K) groups of every row, the sinks in all; found: patterns of the queries' groups,
    where they were counted.
    """

    path: str
    spans: list[tuple[int, int]]
    query_codes: Tensor
    key_codes: Tensor
    lists: Lists | None = None
    found: tuple[Tensor, Tensor] | None = None


def plan_of(x: Inputs, spans: list[tuple[int, int]], lists: bool = False) -> Plan:
    """The cheapest plan of checked inputs; ``lists``: of those that go by group."""
    if lists:
        return make_plan(x, spans, *choose_lists(x))
    return make_plan(x, spans, "causal") if keeps_all(x) else make_plan(x, spans, *choose(x))


def make_plan(x: Inputs, spans: list[tuple[int, int]], path: str,
              found: tuple[Tensor, Tensor] | None = None) -> Plan:  # fmt: skip
    """The plan of validated inputs.

    Args:
        path: ``causal``, ``stripes``, or lists: ``aligned`` or ``stairs`` by group, ``patterns``.
        found: patterns of the queries' memberships: needed by ``patterns``, of use to ``stripes``.
    """
    own, keys = x.membership.flatten(0, 1), x.key_membership.flatten(0, 1)
    sinks = None
    if x.sinks:
        batch, tokens = x.query.shape[0], x.query.shape[2]
        sinks = sink_tokens(x.real, batch, tokens, x.sinks, x.query.device)
        sinks = sinks.repeat_interleave(x.membership.shape[1], 0)
    if path in ("causal", "stripes"):
        codes = keys if sinks is None else keys | sinks.unsqueeze(-1)
        return Plan(path, spans, own.flatten(0, 1), codes.flatten(0, 1), None, found)
    if path == "patterns" and found is not None:
        lists = build_pattern_lists(own, keys, sinks, found)
    else:
        lists = build_lists(own, None if path == "aligned" else keys, sinks)
    return Plan("lists", spans, lists.query_codes, lists.key_codes, lists)


def decomposed_attention(x: Inputs, plan: Plan) -> Tensor:
    """Attention of validated inputs on CPU, (B, H, T, D), differentiable in query, key, value."""
    tensors = (x.query, x.key, x.value)
    if not (torch.is_grad_enabled() and any(each.requires_grad for each in tensors)):
        return _forward(*tensors, x, plan)[0]
    out: Tensor = _Attention.apply(*tensors, x, plan)
    return out


def _forward(query: Tensor, key: Tensor, value: Tensor, x: Inputs,
             plan: Plan) -> tuple[Tensor, Tensor]:  # fmt: skip
    """out (B, H, T, D) and lse (B, H, T)."""
    out, lse = _forward_groups(query, key, value, x, plan)
    add_extra(query, key, value, x, out, lse)
    return out, lse


def _forward_groups(query: Tensor, key: Tensor, value: Tensor, x: Inputs,
                    plan: Plan) -> tuple[Tensor, Tensor]:  # fmt: skip
    batch, heads, tokens, dim = query.shape
    if plan.lists is None and batch == x.membership.shape[1] == 1 and x.real is None:
        ((_, stack),) = _stacks(query, key, value, x, plan)
        return whole_forward(stack, plan.path == "causal")
    # Laid out as the kernel's own results are, heads beside each other: rows are copied whole.
    out = query.new_empty(batch, tokens, heads, dim).transpose(1, 2)
    lse_type = torch.promote_types(query.dtype, torch.float32)
    lse = torch.empty(batch, tokens, heads, dtype=lse_type).transpose(1, 2)
    if x.real is not None:
        for b, (start, stop) in enumerate(plan.spans):
            out[b, :, :start] = 0
            out[b, :, stop:] = 0
    if plan.lists is None:
        for view, stack in _stacks(query, key, value, x, plan):
            run = causal_forward if plan.path == "causal" else rows_forward
            run(stack, view(out), view(lse))
        return out, lse
    merge = groups_forward if plan.lists.aligned else stairs_forward
    if not plan.lists.single:
        out.zero_()
        lse.fill_(-torch.inf)
    for b, own, _, routing in _routings(query, key, value, x, plan.spans):
        merge(routing, plan.lists, out[b, own], lse[b, own])
        local_forward(routing, _codes(plan, routing), out[b, own], lse[b, own])
    return out, lse


class _Attention(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor, x: Inputs,
                plan: Plan) -> Tensor:  # fmt: skip
        out, lse = _forward(query, key, value, x, plan)
        ctx.save_for_backward(query, key, value, out, lse)
        ctx.rest = x, plan
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        query, key, value, out, lse = ctx.saved_tensors
        return *decomposed_backward(grad, query, key, value, out, lse, *ctx.rest), None, None


def decomposed_backward(
    grad: Tensor, query: Tensor, key: Tensor, value: Tensor, out: Tensor, lse: Tensor, x: Inputs,
    plan: Plan,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Gradients in query, key and value, given the whole softmax's out and lse (B, H, T)."""
    d_query, d_key, d_value = (torch.zeros_like(tensor) for tensor in (query, key, value))
    add_extra_grads(grad, query, key, value, x, out, lse, (d_query, d_key, d_value))
    if plan.lists is None:
        for view, stack in _stacks(query, key, value, x, plan):
            undo = causal_backward if plan.path == "causal" else rows_backward
            tensors = (grad, out, lse, d_query, d_key, d_value)
            undo(stack, StackGrads(*(view(tensor) for tensor in tensors)))
        return d_query, d_key, d_value
    add = groups_backward if plan.lists.aligned else stairs_backward
    for b, heads, key_heads, routing in _routings(query, key, value, x, plan.spans):
        saved = Saved(grad[b, heads], out[b, heads], lse[b, heads], d_query[b, heads],
                      d_key[b, key_heads], d_value[b, key_heads])  # fmt: skip
        local_backward(routing, _codes(plan, routing), saved)
        add(routing, plan.lists, saved)
    return d_query, d_key, d_value


def _codes(plan: Plan, routing: Routing) -> Codes:
    rows = slice(routing.base, routing.base + routing.query.shape[1])
    return plan.query_codes[rows], plan.key_codes[rows]


def _stacks(
    query: Tensor, key: Tensor, value: Tensor, x: Inputs, plan: Plan
) -> Iterator[tuple[Callable[[Tensor], Tensor], Stack]]:
    """Every sequence as a stack, and the view (R, heads, its tokens, ...) of any tensor of it."""
    routings, tokens = x.membership.shape[1:3]
    shape = (-1, routings, tokens)
    codes = [each.unflatten(0, shape) for each in (plan.query_codes, plan.key_codes)]
    which = None if plan.found is None else plan.found[1].unflatten(0, (-1, routings))
    for b, (start, stop) in enumerate(plan.spans):

        def view(tensor: Tensor, b: int = b, own: slice = slice(start, stop)) -> Tensor:
            split = tensor[b : b + 1] if routings == 1 else tensor[b].unflatten(0, (routings, -1))
            return split if own.stop - own.start == tokens else split[:, :, own]

        found = None
        if plan.found is not None and which is not None:
            found = plan.found[0], which[b, :, start:stop]
        own, keys = (each[b, :, start:stop] for each in codes)
        yield view, Stack(view(query), view(key), view(value), own, keys, found, x.window, x.scale)


def _routings(
    query: Tensor, key: Tensor, value: Tensor, x: Inputs, spans: list[tuple[int, int]]
) -> Iterator[tuple[int, slice, slice, Routing]]:
    """Every routing of every sequence: (sequence, query heads, key heads, its tensors)."""
    routings, tokens = x.membership.shape[1:3]
    for b, r, own, own_keys in routing_heads(query, key, routings):
        n = b * routings + r
        yield b, own, own_keys, Routing(
            query[b, own], key[b, own_keys], value[b, own_keys], *spans[b], n * tokens, n,
            x.window, x.sinks, x.scale,
        )  # fmt: skip
