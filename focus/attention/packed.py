"""The decomposition on CUDA: one packed call over all groups, one over the windows, and the merge.

A list's tokens, queries or keys of the group, form a segment in order of position, so "causal" is
the kernel's own. What must not count is lowered by code dimensions: pairs that an earlier list or
the group call counts, and rows of a segment that are queries only. The kernels are unmodified.

Shape suffixes: B batch, R routings (B, or B * Hk), T tokens, X rows (R * T), N entries of lists,
H query heads and Hk key heads of a routing, D head dimension, K groups.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn.functional import pad

from focus.attention.checks import Inputs, sink_tokens
from focus.attention.extra import add_extra, add_extra_grads
from focus.attention.kernels import Segments, packed_backward, packed_forward
from focus.attention.plan import code_size, entries

MOST_DIM = 256  # head dimension of FlashAttention kernels
MERGE_ROWS = 1 << 16  # merged at once: in float32, whatever the length
LOWEST = 1024.0  # lowers the logit of a row that is no key of its segment, counted nowhere


@dataclass(frozen=True)
class PackedPlan:
    """Segments and codes of a batch.

    Attributes:
        index: (N,) rows ``r * T + t`` of the lists' entries; None where a call takes rows as they
            stand.
        kept: (N,) bool, entries whose result as a query counts; None: all.
        groups: segments of the lists; query_codes, key_codes (N, C) or None where no pair repeats.
        real: (M,) rows of real tokens, None: all; windows: segments of the sequences.
        query_groups, key_groups: (X, K) bool, the sinks in all.
        permuted: whether every row is in exactly one list.
    """

    index: Tensor
    kept: Tensor | None
    groups: Segments
    query_codes: Tensor | None
    key_codes: Tensor | None
    real: Tensor | None
    windows: Segments
    query_groups: Tensor
    key_groups: Tensor
    permuted: bool


def packed_refusal(x: Inputs) -> str | None:
    """Why the packed kernels cannot take these inputs; None where they can."""
    if x.query.dtype not in (torch.float16, torch.bfloat16):
        return (
            f"query: is {x.query.dtype}; FlashAttention on CUDA needs float16 or bfloat16: "
            "convert, or use backend='flex'"
        )
    widest = _round(x.query.shape[-1] + x.membership.shape[-1] + 1)
    if widest > MOST_DIM:
        return (
            f"membership: {x.membership.shape[-1]} groups beside a head dimension of "
            f"{x.query.shape[-1]} make {widest} > {MOST_DIM} dimensions; use backend='flex'"
        )
    return None


def make_packed_plan(x: Inputs) -> PackedPlan:
    """Plan of validated inputs, on their device; one transfer of list lengths to the host."""
    batch, routings, tokens, groups = x.membership.shape
    own_RTK, keys_RTK = x.membership.flatten(0, 1), x.key_membership.flatten(0, 1)
    if x.sinks:
        sinks = sink_tokens(x.real, batch, tokens, x.sinks, x.query.device)
        keys_RTK = keys_RTK | sinks.repeat_interleave(routings, 0).unsqueeze(-1)
    index, where, offsets = entries(own_RTK | keys_RTK)
    most, most_keys = int(own_RTK.sum(-1).max()), int(keys_RTK.sum(-1).max())
    is_query = _entry_values(own_RTK, where)
    is_key = _entry_values(keys_RTK, where) if x.separate_keys else None
    group = where.div(tokens, rounding_mode="floor") % groups
    query_groups, key_groups = own_RTK.flatten(0, 1), keys_RTK.flatten(0, 1)
    codes = _entry_codes(x, index, group, is_key, query_groups, key_groups,
                         min(most, most_keys) > 1)  # fmt: skip
    alone = not x.sinks and not x.separate_keys
    permuted = alone and most == 1 and index.numel() == own_RTK.shape[0] * tokens
    real, lengths = _real_rows(x)
    return PackedPlan(
        index, None if alone else is_query, Segments.of(offsets, index.device), *codes, real,
        Segments.of(lengths, index.device), query_groups, key_groups, permuted,
    )  # fmt: skip


def _entry_values(values_RTK: Tensor, where_N: Tensor) -> Tensor:
    return values_RTK.transpose(1, 2).reshape(-1)[where_N]


def _entry_codes(
    x: Inputs, index: Tensor, group: Tensor, is_key: Tensor | None, query_groups: Tensor,
    key_groups: Tensor, repeats: bool,
) -> tuple[Tensor | None, Tensor | None]:  # fmt: skip
    """(N, C) code dimensions of every entry as a query and as a key, or None, None."""
    query_parts, key_parts = [], []
    dtype = x.query.dtype
    if repeats:
        size = code_size(x.scale, dtype)
        earlier = torch.arange(query_groups.shape[1], device=index.device) < group[:, None]
        query_parts.append((query_groups[index] & earlier).to(dtype) * -size)
        key_parts.append(key_groups[index].to(dtype) * size)
    if is_key is not None:
        size = code_size(x.scale, dtype, LOWEST)
        query_parts.append(torch.full((len(index), 1), -size, dtype=dtype, device=index.device))
        key_parts.append((~is_key).to(dtype).unsqueeze(1) * size)
    if not query_parts:
        return None, None
    return torch.cat(query_parts, 1), torch.cat(key_parts, 1)


def _real_rows(x: Inputs) -> tuple[Tensor | None, list[int]]:
    routings, tokens = x.membership.shape[1:3]
    if x.real is None:
        total = x.membership.shape[0] * routings
        return None, [n * tokens for n in range(total + 1)]
    real = x.real.repeat_interleave(routings, 0)
    lengths = torch.nn.functional.pad(real.sum(1).cumsum(0), (1, 0)).tolist()
    return real.flatten().nonzero().squeeze(1), lengths


def packed_attention(x: Inputs, plan: PackedPlan) -> Tensor:
    """Attention of validated inputs, (B, H, T, D), differentiable in query, key and value."""
    out: Tensor = _Packed.apply(x.query, x.key, x.value, x, plan)
    return out


def _rows(x_BHTD: Tensor, routings: int) -> Tensor:
    """(X, heads of a routing, D): tokens of every routing one after the other."""
    batch, heads, tokens, dim = x_BHTD.shape
    split = x_BHTD.unflatten(1, (routings, heads // routings)).transpose(2, 3)
    return split.reshape(batch * routings * tokens, heads // routings, dim)


def _unrows(rows_XHD: Tensor, like: Tensor, routings: int) -> Tensor:
    batch, _, tokens, _ = like.shape
    return rows_XHD.unflatten(0, (batch, routings, tokens)).transpose(2, 3).flatten(1, 2)


def _extended(x_NHD: Tensor, codes_NC: Tensor | None, width: int) -> Tensor:
    """Rows with code dimensions and zeros up to a head dimension of ``width``."""
    if codes_NC is not None:
        x_NHD = torch.cat([x_NHD, codes_NC[:, None].expand(-1, x_NHD.shape[1], -1)], -1)
    return pad(x_NHD, (0, width - x_NHD.shape[-1]))


def _round(width: int) -> int:
    return -(-width // 8) * 8


Operands = tuple[Tensor, Tensor, Tensor]


@dataclass(frozen=True)
class _Call:
    """One packed call: which rows, their codes, segments and window."""

    index: Tensor | None
    query_codes: Tensor | None
    key_codes: Tensor | None
    segments: Segments
    window: int | None
    width: int

    def operands(self, query: Tensor, key: Tensor, value: Tensor) -> Operands:
        return (
            _extended(self.take(query), self.query_codes, self.width),
            _extended(self.take(key), self.key_codes, self.width),
            _extended(self.take(value), None, self.width),
        )

    def take(self, rows: Tensor) -> Tensor:
        return rows if self.index is None else rows.index_select(0, self.index)


def _calls(x: Inputs, plan: PackedPlan) -> tuple[_Call, _Call]:
    """The group call and the local call."""
    dim, dtype = x.query.shape[-1], x.query.dtype
    extra = 0 if plan.query_codes is None else plan.query_codes.shape[1]
    groups = _Call(plan.index, plan.query_codes, plan.key_codes, plan.groups, None,
                   _round(dim + extra))  # fmt: skip
    size = code_size(x.scale, dtype)
    query_codes, key_codes = plan.query_groups.to(dtype) * -size, plan.key_groups.to(dtype) * size
    if plan.real is not None:
        query_codes, key_codes = query_codes[plan.real], key_codes[plan.real]
    local = _Call(plan.real, query_codes, key_codes, plan.windows, x.window,
                  _round(dim + query_codes.shape[1]))  # fmt: skip
    return groups, local


class _Packed(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor, x: Inputs,
                plan: PackedPlan) -> Tensor:  # fmt: skip
        routings = x.membership.shape[1]
        rows = _rows(query, routings), _rows(key, routings), _rows(value, routings)
        dim = query.shape[-1]
        results, contexts = [], []
        for call in _calls(x, plan):
            q, k, v = call.operands(*rows)
            out, lse, context = packed_forward(q, k, v, call.segments, x.scale, call.window)
            results.append((out[..., :dim], lse))
            contexts.append(context)
        out, lse = _merge(plan, *results[0], *results[1], rows[0])
        out, lse = _with_extra(query, key, value, x, out, lse)
        ctx.save_for_backward(query, key, value, out, lse)
        ctx.rest = x, plan, contexts
        return _unrows(out, query, routings)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        query, key, value, out, lse = ctx.saved_tensors
        x, plan, contexts = ctx.rest
        routings, dim = x.membership.shape[1], query.shape[-1]
        rows = _rows(query, routings), _rows(key, routings), _rows(value, routings)
        grad_rows = _rows(grad, routings)
        totals = [torch.zeros_like(each, dtype=lse.dtype) for each in rows]
        for call, context in zip(_calls(x, plan), contexts, strict=True):
            q, k, v = call.operands(*rows)
            part_grad, part_out = (_extended(call.take(y), None, call.width)
                                   for y in (grad_rows, out))  # fmt: skip
            part_lse = lse if call.index is None else lse.index_select(1, call.index)
            if call.window is None and plan.kept is not None:
                part_lse = part_lse.masked_fill(~plan.kept, torch.inf)
            parts = packed_backward(part_grad, q, k, v, part_out, part_lse, context,
                                    call.segments, x.scale, call.window)  # fmt: skip
            for total, part in zip(totals, parts, strict=True):
                _add(total, call.index, part[..., :dim])
        d_query, d_key, d_value = (
            _unrows(total, like, routings).contiguous()
            for total, like in zip(totals, (query, key, value), strict=True)
        )
        if x.extra is not None:
            whole, whole_lse = _unrows(out, query, routings), _unrow_lse(lse, query, routings)
            add_extra_grads(grad, query, key, value, x, whole, whole_lse, (d_query, d_key, d_value))
        return (d_query.to(query.dtype), d_key.to(key.dtype), d_value.to(value.dtype), None, None)


def _unrow_lse(lse_HX: Tensor, like: Tensor, routings: int) -> Tensor:
    batch, _, tokens, _ = like.shape
    return lse_HX.unflatten(1, (batch, routings, tokens)).permute(1, 2, 0, 3).flatten(1, 2)


def _with_extra(query: Tensor, key: Tensor, value: Tensor, x: Inputs, out: Tensor,
                lse: Tensor) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Rows (X, H, D) and lse (H, X) of the mask, with the further keys merged in."""
    if x.extra is None:
        return out, lse
    routings = x.membership.shape[1]
    whole, whole_lse = _unrows(out, query, routings), _unrow_lse(lse, query, routings)
    whole = whole.clone()
    add_extra(query, key, value, x, whole, whole_lse)
    split = whole_lse.unflatten(1, (routings, -1)).permute(2, 0, 1, 3)
    return _rows(whole, routings), split.flatten(1)


def _add(total: Tensor, index: Tensor | None, part: Tensor) -> None:
    if index is None:
        total += part
    else:
        total.index_add_(0, index, part.to(total.dtype))


def _merge(plan: PackedPlan, group_out: Tensor, group_lse: Tensor, local_out: Tensor,
           local_lse: Tensor, like: Tensor) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Merged out (X, H, D) and lse (H, X); rows of padding are zero with lse 0."""
    if plan.real is not None:
        local_out = torch.zeros_like(like).index_copy_(0, plan.real, local_out)
        empty = local_lse.new_full((local_lse.shape[0], like.shape[0]), -torch.inf)
        local_lse = empty.index_copy_(1, plan.real, local_lse)
    if plan.permuted:
        at = torch.empty_like(plan.index)
        at[plan.index] = torch.arange(len(at), device=at.device)
        other, other_lse = group_out.index_select(0, at), group_lse.index_select(1, at)
        lse = torch.logaddexp(local_lse, other_lse)
        weight = torch.exp(other_lse - lse).T.unsqueeze(-1)
        for start in range(0, len(at), MERGE_ROWS):
            rows = slice(start, start + MERGE_ROWS)
            merged = local_out[rows].to(lse.dtype).lerp_(other[rows].to(lse.dtype), weight[rows])
            local_out[rows] = merged.to(like.dtype)
        return local_out, lse
    return _merge_lists(plan, group_out, group_lse, local_out, local_lse)


def _merge_lists(plan: PackedPlan, group_out: Tensor, group_lse: Tensor, local_out: Tensor,
                 local_lse: Tensor) -> tuple[Tensor, Tensor]:  # fmt: skip
    """As :func:`_merge` where a row stands in several lists."""
    if plan.kept is not None:
        group_lse = group_lse.masked_fill(~plan.kept, -torch.inf)
    index = plan.index.expand(group_lse.shape[0], -1)
    top = local_lse.scatter_reduce(1, index, group_lse, "amax").nan_to_num(neginf=0.0)
    weights = torch.exp(group_lse - top.gather(1, index))
    local_weight = torch.exp(local_lse - top)
    total = local_weight.scatter_add(1, index, weights)
    out = local_out.to(top.dtype) * local_weight.T.unsqueeze(-1)
    out.index_add_(0, plan.index, group_out.to(top.dtype) * weights.T.unsqueeze(-1))
    empty = total == 0
    out = out / total.masked_fill(empty, 1.0).T.unsqueeze(-1)
    return out.to(local_out.dtype), (top + total.log()).masked_fill(empty, 0.0)
