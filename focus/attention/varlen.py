"""Attention under the hard mask by two calls of variable-length FlashAttention and a merge.

The group call: tokens sorted by group, each group (of each routing) a segment in order of position,
so that "causal" is the kernel's own. The local call: the sliding window over every sequence. What
must not count is lowered by code dimensions beside the head's: pairs that an earlier group or the
group call counts, tokens that are in a segment as queries only, padding. Kernels are unmodified.
The host waits for the device once a pass, for the number of entries.

Shape suffixes: B batch, R routings (B, or B * Hk where key heads have their own), T tokens, X rows
(R * T), N entries of all groups, P rows of one rank, H query heads and Hk key heads of a routing,
D head dimension, K groups, C code dimensions.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn.functional import pad

from focus.attention import flash
from focus.attention.checks import Inputs, cleared, for_query_heads, sink_tokens
from focus.attention.extra import add_extra, add_extra_grads
from focus.attention.flash import Segments

MERGE_ROWS = 1 << 16  # merged at once: in float32, whatever the length
REPEATED = 32.0  # lowers a logit whose pair another call counts in full: to exp(-32) of its weight
NO_KEY = 1024.0  # lowers a logit whose pair is counted nowhere


Operands = tuple[Tensor, Tensor, Tensor]


@dataclass(frozen=True)
class Call:
    """One call: the rows it takes (None: as they stand), their code dimensions and segments."""

    index: Tensor | None
    query_codes: Tensor | None
    key_codes: Tensor | None
    segments: Segments

    def operands(self, query: Tensor, key: Tensor, value: Tensor) -> Operands:
        """The call's rows, with codes."""
        own = self.take(query, self.query_codes), self.take(key, self.key_codes)
        return *own, self.take(value)

    def take(self, rows_XHD: Tensor, codes_NC: Tensor | None = None) -> Tensor:
        """The call's rows of a tensor, with codes or zeros up to its head dimension."""
        rows = rows_XHD if self.index is None else rows_XHD.index_select(0, self.index)
        codes = 0 if self.query_codes is None else self.query_codes.shape[1]
        dim, width = rows.shape[-1], _width(rows.shape[-1] + codes)
        if width == dim:
            return rows
        wide = rows.new_zeros(*rows.shape[:2], width)
        wide[..., :dim] = rows
        if codes_NC is not None:
            wide[..., dim : dim + codes] = codes_NC[:, None]
        return wide

    def run(self, rows: Operands, scale: float, package: str) -> tuple[Tensor, Tensor]:
        """out (N, H, D) and lse (H, N); what it copies is gone when it returns."""
        out, lse = flash.forward(*self.operands(*rows), self.segments, scale, package)
        return out[..., : rows[0].shape[-1]], lse


@dataclass(frozen=True)
class Plan:
    """The two calls, and where the group call's results go.

    results: the rows that have a first group, a second, ..., and the entries at which these stand;
    drop: (N,) entries that are keys only.
    """

    groups: Call
    local: Call
    results: list[tuple[Tensor, Tensor]]
    drop: Tensor


def refusal(x: Inputs, package: str = "varlen") -> str | None:
    """Why the kernels cannot take these inputs; None where they can."""
    if package == "flash-attn" and not flash.installed():
        return "backend: flash-attn is not installed; pip install flash-attn, or use 'varlen'"
    if not x.query.is_cuda:
        return f"query: is on {x.query.device}; {package} is for CUDA"
    if x.query.dtype not in (torch.float16, torch.bfloat16):
        return f"query: is {x.query.dtype}; {package} takes float16 and bfloat16: convert, or " \
               "use backend='stripes'"  # fmt: skip
    return too_wide(x)


def too_wide(x: Inputs) -> str | None:
    """Why head dimension and codes together are too much for the kernels; None where they fit."""
    widest = _width(x.query.shape[-1] + x.membership.shape[-1] + 1)
    if widest <= flash.MOST_DIM:
        return None
    return (
        f"membership: {x.membership.shape[-1]} groups beside a head dimension of "
        f"{x.query.shape[-1]} make {widest} > {flash.MOST_DIM} dimensions; use backend='stripes'"
    )


def forward(x: Inputs, package: str = "varlen") -> tuple[Tensor, Tensor]:
    """Output (B, H, T, D) and log-sum-exp (B, H, T), zeros in padding, of inputs after
    :func:`focus.attention.checks.check_contents`."""
    x = _whole_heads(x)
    plan, rows = make_plan(x), _operands(x)
    out_XHD, lse_HX = plan.local.run(rows, x.scale, package)
    out_XHD = out_XHD.contiguous()
    part_NHD, part_HN = plan.groups.run(rows, x.scale, package)
    for rows_P, entries_P in plan.results:
        _merge(out_XHD, lse_HX, part_NHD, part_HN, rows_P, entries_P)
    out, lse = _unrows(out_XHD, x), _unrows(lse_HX.T.unsqueeze(-1), x).squeeze(-1).contiguous()
    if x.real is not None:
        out.masked_fill_(~x.real[:, None, :, None], 0.0)
        lse.masked_fill_(~x.real[:, None, :], 0.0)
    add_extra(x, out, lse)
    return out, lse


def backward(grad: Tensor, x: Inputs, out: Tensor, lse: Tensor,
             package: str = "varlen") -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Gradients in query, key and value: each call's own, under the merged out and lse."""
    key_heads, (x, given) = x.key.shape[1], (_whole_heads(x), lse)
    if x.real is not None:  # a row with lse +inf gives none
        given = lse.masked_fill(~x.real[:, None, :], torch.inf)
        grad = cleared(grad, x.real)
    plan, rows, dim = make_plan(x), _operands(x), x.query.shape[-1]
    grad_XHD, out_XHD = _rows(grad, x), _rows(out, x)
    lse_HX = _rows(given.unsqueeze(-1), x).squeeze(-1).T
    totals = [torch.zeros_like(each, dtype=lse.dtype) for each in rows]
    for call in (plan.local, plan.groups):
        own_lse = lse_HX
        if call.index is not None:
            own_lse = lse_HX.index_select(1, call.index).masked_fill_(plan.drop, torch.inf)
        parts = flash.backward(
            call.take(grad_XHD), *call.operands(*rows), call.take(out_XHD), own_lse,
            call.segments, x.scale, package,
        )  # fmt: skip
        for total, part in zip(totals, parts, strict=True):
            if call.index is None:
                total += part[..., :dim]
            else:
                total.index_add_(0, call.index, part[..., :dim].to(total.dtype))
    d_query, d_key, d_value = (_unrows(each, x).contiguous() for each in totals)
    add_extra_grads(grad, x, out, lse, (d_query, d_key, d_value))
    d_key, d_value = (each.unflatten(1, (key_heads, -1)).sum(2) for each in (d_key, d_value))
    return d_query.to(grad.dtype), d_key.to(grad.dtype), d_value.to(grad.dtype)


def make_plan(x: Inputs) -> Plan:
    """Plan of inputs whose memberships are those of key heads, on their device."""
    batch, routings, tokens, groups = x.membership.shape
    own_RTK, keys_RTK = x.membership.flatten(0, 1), x.key_membership.flatten(0, 1)
    if x.sinks:
        sinks = sink_tokens(x.real, batch, tokens, x.sinks, x.query.device)
        keys_RTK = keys_RTK | sinks.repeat_interleave(routings, 0).unsqueeze(-1)
    held_L = (own_RTK | keys_RTK).transpose(1, 2).reshape(-1)  # by (routing, group, position)
    sizes_RT = own_RTK.sum(-1)
    having_K = (sizes_RT.unsqueeze(-1) > torch.arange(groups, device=held_L.device)).sum((0, 1))
    numbers = held_L.sum(), keys_RTK.sum(-1).amax(), *having_K
    count, most_keys, *having = torch.stack(numbers).tolist()  # the one wait for the device
    having = [each for each in having if each]
    ends_L = held_L.cumsum(0)
    place_N = held_L.new_zeros(count + 1, dtype=torch.int64)
    place_N.scatter_(0, torch.where(held_L, ends_L - 1, count),
                     torch.arange(len(held_L), device=held_L.device))  # fmt: skip
    place_N = place_N[:count]
    routing_N = place_N.div(groups * tokens, rounding_mode="floor")
    index_N = place_N % tokens + routing_N * tokens
    offsets = pad(ends_L.view(-1, tokens)[:, -1], (1, 0)).to(torch.int32)
    group_N = place_N.div(tokens, rounding_mode="floor") % groups
    both_XK = own_RTK.flatten(0, 1), keys_RTK.flatten(0, 1)
    codes = _group_codes(x, index_N, group_N, *both_XK, min(len(having), most_keys) > 1)
    is_query_N = both_XK[0][index_N, group_N]
    rank_N = (both_XK[0].cumsum(1) - 1)[index_N, group_N].masked_fill(~is_query_N, groups)
    entries = rank_N.argsort(stable=True)[: sum(having)].split(having)
    return Plan(
        Call(index_N, *codes, Segments(offsets, tokens)),
        _local_call(x, *both_XK),
        [(index_N[each], each) for each in entries],
        ~is_query_N,
    )


def _group_codes(x: Inputs, index: Tensor, group: Tensor, own_XK: Tensor, keys_XK: Tensor,
                 repeats: bool) -> tuple[Tensor | None, Tensor | None]:  # fmt: skip
    """(N, C) code dimensions of every entry as a query and as a key, or None, None."""
    query_parts, key_parts, dtype = [], [], x.query.dtype
    if repeats:
        size = code_size(x.scale, REPEATED, dtype)
        earlier = torch.arange(own_XK.shape[1], device=index.device) < group[:, None]
        query_parts.append((own_XK[index] & earlier).to(dtype) * -size)
        key_parts.append(keys_XK[index].to(dtype) * size)
    if x.separate_keys:
        size = code_size(x.scale, NO_KEY, dtype)
        no_key = ~keys_XK[index, group]
        query_parts.append(torch.full_like(no_key[:, None], -size, dtype=dtype))
        key_parts.append(no_key[:, None].to(dtype) * size)
    if not query_parts:
        return None, None
    return torch.cat(query_parts, 1), torch.cat(key_parts, 1)


def _local_call(x: Inputs, own_XK: Tensor, keys_XK: Tensor) -> Call:
    routings, tokens = x.membership.shape[1:3]
    dtype, device = x.query.dtype, own_XK.device
    size = code_size(x.scale, REPEATED, dtype)
    query_codes, key_codes = own_XK.to(dtype) * -size, keys_XK.to(dtype) * size
    if x.real is not None:
        size = code_size(x.scale, NO_KEY, dtype)
        padding = ~x.real.repeat_interleave(routings, 0).flatten().unsqueeze(1)
        query_codes = torch.cat([query_codes, torch.full_like(padding, -size, dtype=dtype)], 1)
        key_codes = torch.cat([key_codes, padding.to(dtype) * size], 1)
    offsets = torch.arange(0, len(own_XK) + 1, tokens, dtype=torch.int32, device=device)
    return Call(None, query_codes, key_codes, Segments(offsets, tokens, min(x.window, tokens)))


def code_size(scale: float, lowest: float, dtype: torch.dtype) -> float:
    """The power of two c (exact in any dtype) with which codes lower a logit by c^2 * scale, twice
    ``lowest`` at least in float64."""
    lowest *= 2.0 if dtype == torch.float64 else 1.0
    size = 1.0
    while size * size * scale < lowest:
        size *= 2.0
    return size


def _merge(out_XHD: Tensor, lse_HX: Tensor, part_NHD: Tensor, part_HN: Tensor,
           rows_P: Tensor, entries_P: Tensor) -> None:  # fmt: skip
    """Merges entries' results into rows of out and of the log-sum-exp, in place."""
    part_HP = part_HN.index_select(1, entries_P)
    merged_HP = torch.logaddexp(lse_HX.index_select(1, rows_P), part_HP)
    lse_HX.index_copy_(1, rows_P, merged_HP)
    weight_PH = torch.exp(part_HP - merged_HP).T.unsqueeze(-1)
    pieces = (each.split(MERGE_ROWS) for each in (rows_P, entries_P, weight_PH))
    for rows, entries, weight in zip(*pieces, strict=True):
        part = part_NHD.index_select(0, entries).to(merged_HP.dtype)
        former = out_XHD.index_select(0, rows).to(part.dtype)
        out_XHD.index_copy_(0, rows, former.lerp_(part, weight).to(out_XHD.dtype))


def _whole_heads(x: Inputs) -> Inputs:
    """With keys and values for every routing, and zeros in padding, which may hold anything."""
    routings = x.membership.shape[1]
    key, value = (cleared(for_query_heads(each, routings), x.real) for each in (x.key, x.value))
    return replace(x, query=cleared(x.query, x.real), key=key, value=value)


def _operands(x: Inputs) -> Operands:
    return _rows(x.query, x), _rows(x.key, x), _rows(x.value, x)


def _rows(x_BHTD: Tensor, x: Inputs) -> Tensor:
    """(X, heads of a routing, D): tokens of every routing one after the other."""
    split = x_BHTD.unflatten(1, (x.membership.shape[1], -1)).transpose(2, 3)
    return split.flatten(0, 2)


def _unrows(rows_XHD: Tensor, x: Inputs) -> Tensor:
    batch, routings, tokens = x.membership.shape[:3]
    split = rows_XHD.unflatten(0, (batch, routings, tokens)).permute(0, 2, 1, 3, 4)
    return split.flatten(2, 3).transpose(1, 2)


def _width(dims: int) -> int:
    return -(-dims // 8) * 8
