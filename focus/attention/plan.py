"""From membership to lists: which queries and keys meet in each group, in order.

Pure tensor work, the same on every device. A list is one group of one routing: its keys are the
tokens that hold the group (and the sinks, which join every group), its queries the tokens that look
into it, both sorted by position, so that "causal" is a triangle or a staircase over them. Where
tokens hold several groups, the lists may also be the *patterns* of groups that queries hold: then
every query stands in one list, whose keys are all that share a group with it, and no pair can meet
twice.

Shape suffixes: R routings (B, or B * Hk where every key head has its own), T tokens, K groups,
S patterns, N entries of all lists together, L lists (R * K or R * S), X rows (R * T).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import accumulate

import torch
from torch import Tensor


@dataclass(frozen=True)
class Lists:
    """The lists of all routings, one after the other: list ``r * count + g`` is g of routing r.

    Attributes:
        count: lists of a routing.
        key_index: (N,) int64 rows ``r * T + t`` of the keys, sorted by list, then by position.
        key_offsets: L + 1 boundaries of the lists in ``key_index``.
        query_index, query_offsets: likewise of the queries.
        stairs: (N,) keys of its list that each query may see, those at or before it; None where
            queries and keys are one list (aligned: query n sees the keys up to n).
        kept: (N,) bool, aligned lists only: False for a sink that is in the list as a key alone,
            whose result as a query is dropped; None where there is none.
        first: (N,) bool, staircases only: False where the query's sinks are counted in an earlier
            list; None where no query is in two lists or there are no sinks.
        single: whether every query is in exactly one list.
        repeats: whether a pair may meet in two lists, so that codes must tell them apart.
        query_codes, key_codes: (X, K) bool groups of every row, the sinks in all.
    """

    count: int
    key_index: Tensor
    key_offsets: list[int]
    query_index: Tensor
    query_offsets: list[int]
    stairs: Tensor | None
    kept: Tensor | None
    first: Tensor | None
    single: bool
    repeats: bool
    query_codes: Tensor
    key_codes: Tensor

    @property
    def aligned(self) -> bool:
        """Whether every list's queries are its keys."""
        return self.stairs is None


def build_lists(
    membership_RTK: Tensor, key_membership_RTK: Tensor | None, sinks_RT: Tensor | None
) -> Lists:
    """Sorts tokens by group.

    Args:
        membership_RTK: bool, groups that a token looks into; all False for padding.
        key_membership_RTK: bool, groups that a token is found in; None: the same.
        sinks_RT: bool, tokens that are keys for everyone; None: none.
    """
    separate = key_membership_RTK is not None
    own_RTK = membership_RTK if key_membership_RTK is None else key_membership_RTK
    keys_RTK = own_RTK if sinks_RT is None else own_RTK | sinks_RT.unsqueeze(-1)
    key_index, key_where, key_offsets = entries(keys_RTK)
    codes = membership_RTK.flatten(0, 1), keys_RTK.flatten(0, 1)
    groups, most = membership_RTK.shape[-1], int(membership_RTK.sum(-1).max())
    if not separate:
        kept = None if sinks_RT is None else at_entries(membership_RTK, key_where)
        return Lists(groups, key_index, key_offsets, key_index, key_offsets, None, kept, None,
                     most <= 1, most > 1, *codes)  # fmt: skip
    repeats = most > 1 and int(own_RTK.sum(-1).max()) > 1
    query_index, query_where, query_offsets = entries(membership_RTK)
    stairs = at_entries(keys_RTK.cumsum(1, dtype=torch.int32), query_where)
    first = None
    if sinks_RT is not None and most > 1 and not repeats:
        earlier_RTK = membership_RTK.cumsum(-1, dtype=torch.int32) > 1
        first = ~at_entries(earlier_RTK, query_where)
    return Lists(groups, key_index, key_offsets, query_index, query_offsets, stairs, None, first,
                 most <= 1, repeats, *codes)  # fmt: skip


def patterns(membership_RTK: Tensor, most: int) -> tuple[Tensor, Tensor] | None:
    """The distinct rows of a membership, (S, K), and which of them each row is, (R, T).

    None if there are more than ``most`` (or more groups than fit an integer). A row without any
    group (padding) is -1 and no pattern.
    """
    groups = membership_RTK.shape[-1]
    if groups > 62:
        return None
    bit_K = torch.ones(groups, dtype=torch.int64, device=membership_RTK.device) << torch.arange(
        groups, device=membership_RTK.device
    )
    bits_RT = (membership_RTK * bit_K).sum(-1)
    found, which_RT = torch.unique(bits_RT, return_inverse=True)
    empty = int(found[0] == 0)
    if found.shape[0] - empty > most:
        return None
    return (found[empty:, None] & bit_K) != 0, which_RT - empty


def build_pattern_lists(
    membership_RTK: Tensor, key_membership_RTK: Tensor, sinks_RT: Tensor | None,
    found: tuple[Tensor, Tensor],
) -> Lists:  # fmt: skip
    """Lists by the pattern of the query's groups; arguments as of :func:`build_lists`."""
    pattern_SK, which_RT = found
    keys_RTK = key_membership_RTK
    if sinks_RT is not None:
        keys_RTK = keys_RTK | sinks_RT.unsqueeze(-1)
    own_RTS = which_RT.unsqueeze(-1) == torch.arange(len(pattern_SK), device=which_RT.device)
    meets_RTS = (keys_RTK.float() @ pattern_SK.float().T) > 0
    lists = build_lists(own_RTS, meets_RTS, None)
    codes = membership_RTK.flatten(0, 1), keys_RTK.flatten(0, 1)
    return replace(lists, query_codes=codes[0], key_codes=codes[1])


def entries(membership_RTK: Tensor) -> tuple[Tensor, Tensor, list[int]]:
    """Rows ``r * T + t``, places in (R, K, T) and offsets of the True entries, by (r, g, t)."""
    routings, tokens, groups = membership_RTK.shape
    by_group = membership_RTK.transpose(1, 2).reshape(-1)
    where = by_group.nonzero().squeeze(1)
    counts = by_group.view(routings * groups, tokens).sum(1).tolist()
    index = where % tokens
    if routings > 1:
        index = index + where.div(groups * tokens, rounding_mode="floor") * tokens
    return index, where, [0, *accumulate(counts)]


def at_entries(values_RTK: Tensor, where_N: Tensor) -> Tensor:
    """Values (N,) of a (R, T, K) tensor at the places that :func:`entries` gives."""
    return values_RTK.transpose(1, 2).reshape(-1)[where_N]


def code_size(scale: float, dtype: torch.dtype, lowest: float | None = None) -> float:
    """The power of two c with which a shared group lowers a logit by c^2 * scale.

    A pair that is counted elsewhere with its full weight is left a share of exp(-c^2 * scale) of
    it: below half a unit in the last place of the accumulation (float32 for half precision).
    """
    if lowest is None:
        lowest = 64.0 if dtype == torch.float64 else 32.0
    size = 1.0
    while size * size * scale < lowest:
        size *= 2.0
    return size


def codes_of(
    membership_NK: Tensor, groups: int, size: float, heads: int, dim: int, dtype: torch.dtype
) -> Tensor:
    """(heads, N, dim) code dimensions: ``size`` where a row holds one of the first ``groups``."""
    codes = torch.zeros(membership_NK.shape[0], dim, dtype=dtype, device=membership_NK.device)
    codes[:, :groups] = membership_NK[:, :groups].to(dtype) * size
    return codes.expand(heads, -1, -1)
