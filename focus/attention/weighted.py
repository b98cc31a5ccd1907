"""Attention whose distant pairs carry group weights, without a T x T matrix: training on CPU.

Pairs within the window and with sinks count as they are. A distant pair (i, j) counts with weight
sum_m g_im g_jm over the groups m that both hold, so that its group call has logit q_i . k_j * scale
+ log g_im + log g_jm: two more dimensions of query and key. Pairs that share no group cost nothing.
The group calls' gradients in those dimensions are the gradients of the log weights.

Shape suffixes: B batch, Hr routings of a sequence, R routings of all (B * Hr), H query heads and Hk
key heads of a routing, T tokens, D head dimension, K groups, M queries and N keys of a list.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn.functional import pad

from focus.attention.groups import Routing, Saved, gather, routing_heads
from focus.attention.kernels import mask_dtype
from focus.attention.local import local_backward, local_forward
from focus.attention.plan import at_entries, entries
from focus.attention.stairs import StairList, list_backward, list_forward

EXTRA = 8  # dimensions added for the two weights: the kernel likes multiples of eight


def weighted_attention(
    query: Tensor, key: Tensor, value: Tensor, query_log: Tensor, key_log: Tensor, *,
    window: int, sinks: int, scale: float,
) -> Tensor:  # fmt: skip
    """Softmax over causal pairs, near ones as they are, distant ones by their groups' weights.

    Args:
        query: (B, H, T, D) on CPU; key, value: (B, Hk, T, D), float32, float64 or bfloat16.
        query_log, key_log: (B, Hr, T, K) logarithms of the weights a token has in its groups, -inf
            where it is in none; Hr is 1 or Hk. float32, or float64 with float64 queries.
        window: tokens of the window, the query's own among them.
        sinks: first tokens that are near to everyone.
        scale: factor of the logits.

    Returns:
        (B, H, T, D). Differentiable in all five tensors; memory O(T (D + K)).
    """
    out: Tensor = _Weighted.apply(query, key, value, query_log, key_log, (window, sinks, scale))
    return out


@dataclass(frozen=True)
class _Lists:
    """Distant keys of every group, sorted: group g of routing r is list ``r * count + g``.

    ``stairs``: how many of its list's keys are distant from each query entry and before it.
    """

    count: int
    query_index: Tensor
    query_offsets: list[int]
    key_index: Tensor
    key_offsets: list[int]
    stairs: Tensor

    @classmethod
    def of(cls, queries_RTK: Tensor, keys_RTK: Tensor, window: int, sinks: int) -> _Lists:
        queries_RTK, keys_RTK = queries_RTK.clone(), keys_RTK.clone()
        queries_RTK[:, :window] = False  # all before them is near
        keys_RTK[:, :sinks] = False
        before = pad(keys_RTK.cumsum(1, dtype=torch.int32), (0, 0, window, 0))
        query_index, where, query_offsets = entries(queries_RTK)
        key_index, _, key_offsets = entries(keys_RTK)
        stairs = at_entries(before[:, : keys_RTK.shape[1]], where)
        return cls(keys_RTK.shape[-1], query_index, query_offsets, key_index, key_offsets, stairs)


@dataclass(frozen=True)
class _Weights:
    """Log weights of one routing, (T, K) for queries and keys, or their gradients."""

    query: Tensor
    key: Tensor


class _Weighted(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor, query_log: Tensor,
                key_log: Tensor, rule: tuple[int, int, float]) -> Tensor:  # fmt: skip
        # NaN counts as a weight, so that it reaches the result and does not pass for "in no group".
        queries, keys = (~each.isneginf().flatten(0, 1) for each in (query_log, key_log))
        lists = _Lists.of(queries, keys, rule[0], rule[1])
        batch, heads, tokens, dim = query.shape
        out = query.new_zeros(batch, tokens, heads, dim, dtype=mask_dtype(query.dtype))
        out = out.transpose(1, 2)
        lse = out.new_full((batch, tokens, heads), -torch.inf).transpose(1, 2)
        weights = query_log.flatten(0, 1), key_log.flatten(0, 1)
        for rows, _, routing in _routings(query, key, value, query_log.shape[1], rule):
            own = _Weights(*(each[routing.number] for each in weights))
            local_forward(routing, _no_codes(tokens), out[rows], lse[rows])
            for _, each in _all_lists(routing, lists, own):
                list_forward(routing, each, out[rows], lse[rows], single=False)
        ctx.save_for_backward(query, key, value, *weights, out, lse)
        ctx.rest = lists, rule, query_log.shape
        return out.to(query.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        query, key, value, query_log, key_log, out, lse = ctx.saved_tensors
        lists, rule, shape = ctx.rest
        d_query, d_key, d_value = (
            torch.zeros_like(x, dtype=out.dtype) for x in (query, key, value)
        )
        d_logs = torch.zeros_like(query_log), torch.zeros_like(key_log)
        for rows, keys, routing in _routings(query, key, value, shape[1], rule):
            saved = Saved(grad[rows], out[rows], lse[rows], d_query[rows],
                          d_key[keys], d_value[keys])  # fmt: skip
            local_backward(routing, _no_codes(query.shape[2]), saved)
            own = _Weights(query_log[routing.number], key_log[routing.number])
            into = _Weights(*(each[routing.number] for each in d_logs))
            for group, each in _all_lists(routing, lists, own):
                _add_gradients(routing, group, each, saved, into)
        grads = (x.to(query.dtype) for x in (d_query, d_key, d_value))
        return *grads, *(each.view(shape) for each in d_logs), None


def _add_gradients(routing: Routing, group: int | None, own: StairList, saved: Saved,
                   into: _Weights) -> None:  # fmt: skip
    """One list's gradients: of its operands, and of its group's log weights."""
    dim = saved.out.shape[-1]
    d_query, d_key, d_value = list_backward(routing, own, saved)
    saved.d_query.index_add_(1, own.query_index, d_query[..., :dim])
    saved.d_key.index_add_(1, own.key_index, d_key[..., :dim])
    saved.d_value.index_add_(1, own.key_index, d_value[..., :dim])
    if group is not None:
        # The dimensions hold the weights over the scale, for the kernel multiplies by it.
        into.query[own.query_index, group] = d_query[..., dim].sum(0) / routing.scale
        into.key[own.key_index, group] = d_key[..., dim + 1].sum(0) / routing.scale


def _routings(
    query: Tensor, key: Tensor, value: Tensor, routings: int, rule: tuple[int, int, float]
) -> Iterator[tuple[tuple[int, slice], tuple[int, slice], Routing]]:
    """Every routing of every sequence: where its query and key heads lie, and its tensors."""
    tokens = query.shape[2]
    for b, r, own, own_keys in routing_heads(query, key, routings):
        rows, keys, number = (b, own), (b, own_keys), b * routings + r
        yield (
            rows,
            keys,
            Routing(query[rows], key[keys], value[keys], 0, tokens, number * tokens, number, *rule),
        )


def _all_lists(routing: Routing, lists: _Lists,
               weights: _Weights) -> Iterator[tuple[int | None, StairList]]:  # fmt: skip
    """The sinks as a list that every distant query reads, then the groups' lists."""
    tokens = routing.stop
    if routing.sinks and tokens > routing.window:
        query_index = torch.arange(routing.window, tokens)
        key_index = torch.arange(min(routing.sinks, tokens))
        stairs = (query_index - routing.window + 1).clamp_max(len(key_index))
        yield None, _stair_list(routing, query_index, key_index, stairs, None)
    for group in range(lists.count):
        n = routing.number * lists.count + group
        queries = slice(lists.query_offsets[n], lists.query_offsets[n + 1])
        keys = slice(lists.key_offsets[n], lists.key_offsets[n + 1])
        if queries.start == queries.stop or keys.start == keys.stop:
            continue
        query_index = lists.query_index[queries] - routing.base
        key_index = lists.key_index[keys] - routing.base
        logs = weights.query[query_index, group], weights.key[key_index, group]
        yield group, _stair_list(routing, query_index, key_index, lists.stairs[queries], logs)


def _stair_list(routing: Routing, query_index: Tensor, key_index: Tensor, stairs: Tensor,
                logs: tuple[Tensor, Tensor] | None) -> StairList:  # fmt: skip
    dtype = mask_dtype(routing.query.dtype)
    query = gather(routing.query, query_index).to(dtype)
    key, value = (gather(x, key_index).to(dtype) for x in (routing.key, routing.value))
    if logs is not None:
        query = _with_weight(query, logs[0], 0, routing.scale)
        key = _with_weight(key, logs[1], 1, routing.scale)
        value = pad(value, (0, EXTRA))
    query, key, value = (x.unsqueeze(0) for x in (query, key, value))
    return StairList(query_index, key_index, query, key, value, stairs, None)


def _with_weight(x_HND: Tensor, log_N: Tensor, at: int, scale: float) -> Tensor:
    """Appends the weights at extra dimension ``at``, ones at the other, zeros after both."""
    extra = x_HND.new_zeros(*x_HND.shape[:-1], EXTRA)
    extra[..., at] = log_N.to(x_HND.dtype) / scale
    extra[..., 1 - at] = 1.0
    return torch.cat([x_HND, extra], -1)


def _no_codes(tokens: int) -> tuple[Tensor, Tensor]:
    return torch.zeros(tokens, 1), torch.zeros(tokens, 1)
