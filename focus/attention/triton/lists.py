"""What the kernel ``distant`` reads: each group's keys side by side, and its queries in blocks.

A query in several groups is in a list of each; the kernel takes its first group in a first pass,
its second in another ..., so that it stands once in each.

Shape suffixes: R routings (B * Hm), T tokens, K groups, N keys of all lists, E queries of all
lists, G blocks of queries, L lists (R * K).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad

from focus.attention.checks import Inputs, sink_tokens


@dataclass(frozen=True)
class Keys:
    """tokens (N,) and lists (N,) of each key, list after list; starts (L + 1,): the first of
    each."""

    tokens: Tensor
    lists: Tensor
    starts: Tensor


@dataclass(frozen=True)
class Pass:
    """One group of each query that has so many.

    tokens (E,) int32; allowed (E,) int32: how many keys of its list each may read; groups before
    this one that each is in, as bits (E,); blocks, the longest first: first and stop (G,), their
    queries, and lists (G,).
    """

    tokens: Tensor
    allowed: Tensor
    before: Tensor
    first: Tensor
    stop: Tensor
    lists: Tensor


def most_groups(x: Inputs) -> tuple[int, int]:
    """Of any query, and of any key. The host waits for the device."""
    each = [groups.sum(-1).amax() for groups in (x.membership, x.key_membership)]
    queries, keys = torch.stack(each).tolist()
    return queries, keys


def make_keys(x: Inputs) -> Keys:
    """Of inputs after :func:`focus.attention.checks.check_contents`: all keys but the sinks."""
    keys_RTK = x.key_membership.flatten(0, 1)
    batch, routings, tokens, _ = x.key_membership.shape
    if x.sinks:
        sinks = sink_tokens(x.real, batch, tokens, x.sinks, x.query.device)
        keys_RTK = keys_RTK & ~sinks.repeat_interleave(routings, 0).unsqueeze(-1)
    list_N, token_N = _listed(keys_RTK)
    return Keys(token_N, list_N, pad(keys_RTK.sum(1).flatten().cumsum(0), (1, 0)))


def passes(x: Inputs, keys: Keys, bits_RT: Tensor, most: int, rows: int) -> Iterator[Pass]:
    """In the order of a query's groups, of which none has more than ``most``; ``rows`` queries a
    block."""
    left_RTK = x.membership.flatten(0, 1)
    for number in range(most):
        chosen_RTK = left_RTK
        if number + 1 < most:
            first_RT1 = left_RTK.byte().argmax(-1, keepdim=True)
            chosen_RTK = torch.zeros_like(left_RTK).scatter_(-1, first_RT1, True) & left_RTK
            left_RTK = left_RTK & ~chosen_RTK
        yield _pass(chosen_RTK, x.window, keys, bits_RT, rows)


def _pass(chosen_RTK: Tensor, window: int, keys: Keys, bits_RT: Tensor, rows: int) -> Pass:
    tokens, groups = chosen_RTK.shape[1:]
    list_E, token_E = _listed(chosen_RTK)
    # A key of the list is allowed if its token comes a window or more before: the lists are sorted.
    last_E = list_E * tokens + token_E - window
    upto_E = torch.searchsorted(keys.lists * tokens + keys.tokens, last_E, right=True)
    allowed_E = (upto_E - keys.starts[list_E]).clamp_min(0)
    routing_E, group_E = list_E.div(groups, rounding_mode="floor"), list_E % groups
    before_E = torch.bitwise_left_shift(torch.ones_like(group_E), group_E) - 1
    before_E &= bits_RT[routing_E, token_E]
    first_G, stop_G, list_G = _blocks(chosen_RTK.sum(1).flatten(), len(list_E), rows)
    work_G = allowed_E[(stop_G - 1).clamp_min(0)].masked_fill(first_G >= stop_G, -1)
    order = work_G.argsort(descending=True)
    return Pass(token_E.int(), allowed_E.int(), before_E, first_G[order], stop_G[order],
                list_G[order])  # fmt: skip


def _listed(chosen_RTK: Tensor) -> tuple[Tensor, Tensor]:
    """List (routing * K + group) and token of all that are chosen, list after list."""
    tokens = chosen_RTK.shape[1]
    place = chosen_RTK.transpose(1, 2).reshape(-1).nonzero().squeeze(1)
    return place.div(tokens, rounding_mode="floor"), place % tokens


def _blocks(counts_L: Tensor, total: int, rows: int) -> tuple[Tensor, Tensor, Tensor]:
    """(G,) each: first query, the one after the last, and list; empty at the end, where fewer
    blocks are needed than could be."""
    numbers_L = -(-counts_L // rows)
    ends_L = numbers_L.cumsum(0)
    block_G = torch.arange(total // rows + len(counts_L), device=counts_L.device)
    list_G = torch.searchsorted(ends_L, block_G, right=True)
    real_G = list_G < len(counts_L)
    list_G = list_G.clamp_max(len(counts_L) - 1)
    begin_L = counts_L.cumsum(0) - counts_L
    first_G = begin_L[list_G] + (block_G - (ends_L - numbers_L)[list_G]) * rows
    stop_G = torch.minimum(first_G + rows, begin_L[list_G] + counts_L[list_G])
    return first_G.where(real_G, 0), stop_G.where(real_G, 0), list_G


def heads_of(x: Inputs) -> int:
    """Key heads that a routing serves."""
    return x.key.shape[1] if x.membership.shape[1] == 1 else 1


def gather(rows_BTHkD: Tensor, x: Inputs, keys: Keys) -> Tensor:
    """(N, Hs, D): rows of the lists' keys."""
    tokens, heads, dim = rows_BTHkD.shape[1:]
    routings, groups = x.membership.shape[1:4:2]
    routing_N = keys.lists.div(groups, rounding_mode="floor")
    at_N = routing_N.div(routings, rounding_mode="floor") * tokens + keys.tokens
    if routings > 1:  # the one key head that a routing reads
        at_N = at_N * heads + (routing_N % routings).div(routings // heads, rounding_mode="floor")
        return rows_BTHkD.reshape(-1, 1, dim).index_select(0, at_N)
    return rows_BTHkD.reshape(-1, heads, dim).index_select(0, at_N)
