"""Group calls on CPU where a group's queries are its keys: causal attention over gathered rows.

Results are merged in place, list by list, while they are still in the cache.

Shape suffixes: H query heads and Hk key heads of the routing, T tokens, D head dimension, K groups,
N entries of a list, P lists of a bundle.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad

from focus.attention.kernels import cpu_backward, cpu_forward
from focus.attention.plan import Lists, code_size, codes_of

Codes = tuple[Tensor, Tensor]  # (T, K) groups of every token as a query and as a key

BUNDLE_TOKENS = 8192  # of a padded group call
BUNDLE_WASTE = 60_000  # pairs of padding that cost less than another call


@dataclass(frozen=True)
class Routing:
    """One routing's share of the tensors.

    query (H, T, D); key, value (Hk, T, D); the real tokens are ``start:stop``; ``base`` is its
    first row in the lists, and ``number`` says which routing it is.
    """

    query: Tensor
    key: Tensor
    value: Tensor
    start: int
    stop: int
    base: int
    number: int
    window: int
    sinks: int
    scale: float


@dataclass(frozen=True)
class Saved:
    """What a backward pass needs beside the operands: merged out and lse, and where to add."""

    grad: Tensor
    out: Tensor
    lse: Tensor
    d_query: Tensor
    d_key: Tensor
    d_value: Tensor


@dataclass(frozen=True)
class Bundle:
    """Lists that one call handles, padded to the longest.

    index, kept (P, N): token positions, and whether the query's result counts; last_group: the
    greatest group index, which says how many code dimensions are needed.
    """

    index: Tensor
    kept: Tensor | None
    last_group: int
    group: Tensor


def routing_heads(
    query: Tensor, key: Tensor, routings: int
) -> Iterator[tuple[int, int, slice, slice]]:
    """(sequence, routing, its query heads, its key heads) of every routing, for query (B, H, ...)
    and key (B, Hk, ...)."""
    heads, key_heads = query.shape[1] // routings, key.shape[1] // routings
    for b in range(query.shape[0]):
        for r in range(routings):
            own = slice(r * heads, (r + 1) * heads)
            yield b, r, own, slice(r * key_heads, (r + 1) * key_heads)


def gather(x_HTD: Tensor, index: Tensor) -> Tensor:
    """Rows of a (H, T, D) tensor: (H, N, D), copied along whichever layout is contiguous."""
    if x_HTD.stride(0) < x_HTD.stride(1):
        return x_HTD.transpose(0, 1).index_select(0, index).transpose(0, 1)
    return x_HTD.index_select(1, index)


def merge_rows(out: Tensor, lse: Tensor, index: Tensor, part: Tensor, part_lse: Tensor) -> None:
    """Adds a call's result (H, N, D), (H, N) to the rows ``index`` of the running out and lse."""
    old_lse = lse.index_select(1, index)
    new_lse = torch.logaddexp(old_lse, part_lse)
    # Nothing merged with nothing is -inf less -inf: it stays nothing.
    weight = torch.exp(part_lse - new_lse).nan_to_num_(0.0).unsqueeze(-1)
    old = gather(out, index).to(lse.dtype)
    _copy_rows(out, index, old.lerp_(part.to(lse.dtype), weight).to(out.dtype))
    _copy_rows(lse, index, new_lse)


def put_rows(out: Tensor, lse: Tensor, index: Tensor, part: Tensor, part_lse: Tensor,
             single: bool) -> None:  # fmt: skip
    """Writes a call's result, the only one of these rows, or merges it with what is there."""
    if not single:
        merge_rows(out, lse, index, part, part_lse)
        return
    _copy_rows(out, index, part)
    _copy_rows(lse, index, part_lse)


def _copy_rows(x: Tensor, index: Tensor, rows: Tensor) -> None:
    """x[:, index] = rows, along whichever layout is contiguous."""
    if x.stride(0) < x.stride(1):
        x.transpose(0, 1).index_copy_(0, index, rows.transpose(0, 1))
    else:
        x.index_copy_(1, index, rows)


def bundles(lists: Lists, routing: Routing) -> Iterator[Bundle]:
    """Lists of similar length together: calls are few, and their work divides evenly."""
    first = routing.number * lists.count
    offsets = lists.key_offsets[first : first + lists.count + 1]
    sizes = sorted(
        ((offsets[g + 1] - offsets[g], g) for g in range(lists.count)
         if offsets[g + 1] > offsets[g]), reverse=True,
    )  # fmt: skip
    heads = routing.query.shape[0]
    while sizes:
        longest = sizes[0][0]
        take = 1
        waste = max(BUNDLE_WASTE, heads * longest * longest // 50)
        while (
            take < len(sizes)
            and (take + 1) * longest <= max(BUNDLE_TOKENS, 2 * longest)
            and heads * (longest**2 - sizes[take][0] ** 2) // 2 <= waste
        ):
            take += 1
        yield _bundle(lists, routing, sizes[:take], offsets)
        sizes = sizes[take:]


def _bundle(lists: Lists, routing: Routing, sizes: list[tuple[int, int]],
            offsets: list[int]) -> Bundle:  # fmt: skip
    longest = sizes[0][0]
    padded = any(size < longest for size, _ in sizes)
    index = torch.empty(len(sizes), longest, dtype=torch.int64)
    kept = None
    if padded or lists.kept is not None:
        kept = torch.ones(len(sizes), longest, dtype=torch.bool)
    for p, (size, group) in enumerate(sizes):
        entries = slice(offsets[group], offsets[group] + size)
        index[p, :size] = lists.key_index[entries] - routing.base
        index[p, size:] = index[p, size - 1]
        if kept is not None:
            kept[p, size:] = False
            if lists.kept is not None:
                kept[p, :size] = lists.kept[entries]
    groups = [group for _, group in sizes]
    return Bundle(index, kept, max(groups), torch.tensor(groups))


def _bundle_operands(bundle: Bundle, lists: Lists, routing: Routing) -> list[Tensor]:
    """query (P, H, N, D'), key and value (P, Hk, N, D') with code dimensions where needed."""
    flat = bundle.index.flatten()
    operands = [gather(x, flat) for x in (routing.query, routing.key, routing.value)]
    if lists.repeats and bundle.last_group:
        earlier = torch.arange(lists.count) < bundle.group[:, None]
        earlier = earlier.repeat_interleave(bundle.index.shape[1], 0)
        rows = lists.query_codes[flat + routing.base] & earlier
        keys = lists.key_codes[flat + routing.base]
        query = with_codes(operands[0], rows, bundle.last_group, -1.0, routing.scale)
        key = with_codes(operands[1], keys, bundle.last_group, 1.0, routing.scale)
        operands = [query, key, pad(operands[2], (0, query.shape[-1] - operands[2].shape[-1]))]
    return [x.unflatten(1, bundle.index.shape).transpose(0, 1) for x in operands]


def with_codes(x_HND: Tensor, membership_NK: Tensor, groups: int, sign: float,
               scale: float) -> Tensor:  # fmt: skip
    """Appends code dimensions for the first ``groups`` groups, eight at a time."""
    size = sign * code_size(scale, x_HND.dtype)
    width = -(-groups // 8) * 8
    codes = codes_of(membership_NK, groups, size, x_HND.shape[0], width, x_HND.dtype)
    return torch.cat([x_HND, codes], -1)


def groups_forward(routing: Routing, lists: Lists, out: Tensor, lse: Tensor) -> None:
    """Causal attention within each group: written to out (H, T, D) and lse (H, T) where every token
    has one group, otherwise merged into what they hold."""
    dim = routing.query.shape[-1]
    for bundle in bundles(lists, routing):
        query, key, value = _bundle_operands(bundle, lists, routing)
        part, part_lse = cpu_forward(query, key, value, routing.scale, causal=True)
        part = part[..., :dim].transpose(0, 1)
        part_lse = part_lse.transpose(0, 1)
        if bundle.kept is None:
            # One list at a time: a token in two of them must see the first one's result.
            for p, index in enumerate(bundle.index):
                put_rows(out, lse, index, part[:, p], part_lse[:, p], lists.single)
        else:
            for p, kept in enumerate(bundle.kept):
                where = kept.nonzero().squeeze(1)
                put_rows(out, lse, bundle.index[p, where], part[:, p].index_select(1, where),
                         part_lse[:, p].index_select(1, where), lists.single)  # fmt: skip


def groups_backward(routing: Routing, lists: Lists, saved: Saved) -> None:
    """Gradients of :func:`groups_forward` under the merged out and lse, added to the sums."""
    dim = routing.query.shape[-1]
    for bundle in bundles(lists, routing):
        flat = bundle.index.flatten()
        query, key, value = _bundle_operands(bundle, lists, routing)
        width = query.shape[-1] - dim
        grad, out = (
            pad(gather(x, flat), (0, width)).unflatten(1, bundle.index.shape).transpose(0, 1)
            for x in (saved.grad, saved.out)
        )
        lse = saved.lse.index_select(1, flat)
        if bundle.kept is not None:
            lse.masked_fill_(~bundle.kept.flatten(), torch.inf)
        lse = lse.unflatten(1, bundle.index.shape).transpose(0, 1)
        parts = cpu_backward(grad, query, key, value, out, lse, routing.scale, causal=True)
        totals = (saved.d_query, saved.d_key, saved.d_value)
        for total, part in zip(totals, parts, strict=True):
            total.index_add_(1, flat, part[..., :dim].transpose(0, 1).flatten(1, 2))
