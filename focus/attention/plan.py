"""From membership to lists: which queries and keys meet in each group, in order.

Pure tensor work, the same on every device. A list is one group of one routing: its keys are the
tokens that hold the group (and the sinks, which join every group), its queries the tokens that look
into it, both sorted by position, so that "causal" is a triangle or a staircase over them.

Shape suffixes: R routings (B, or B * Hk where every key head has its own), T tokens, K groups,
N entries of all lists together, L lists (R * K).
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate

import torch
from torch import Tensor


@dataclass(frozen=True)
class Lists:
    """The lists of all routings, one after the other: list ``r * K + g`` is group g of routing r.

    Attributes:
        key_index_N: int64 rows ``r * T + t`` of the keys, sorted by list, then by position.
        key_offsets: L + 1 boundaries of the lists in ``key_index_N``.
        query_index_N, query_offsets: likewise of the queries.
        stairs_N: number of keys of its list that each query may see (those at or before it); None
            where the two lists are one and the same (aligned: query n sees the keys up to n).
        kept_N: aligned lists only: False for a sink that is in the list as a key alone, whose
            result as a query is dropped; None where there is none.
        first_N: staircases only: False where the query's sinks were counted in an earlier list;
            None where no query is in two lists or there are no sinks.
        repeats: whether a pair may meet in two groups, so that codes must tell them apart.
        query_codes_XK, key_codes_XK: (R * T, K) bool groups of every row, the sinks in all.
    """

    key_index_N: Tensor
    key_offsets: list[int]
    query_index_N: Tensor
    query_offsets: list[int]
    stairs_N: Tensor | None
    kept_N: Tensor | None
    first_N: Tensor | None
    repeats: bool
    query_codes_XK: Tensor
    key_codes_XK: Tensor

    @property
    def aligned(self) -> bool:
        """Whether every list's queries are its keys."""
        return self.stairs_N is None


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
    key_index, key_where, key_offsets = _entries(keys_RTK)
    codes = membership_RTK.flatten(0, 1), keys_RTK.flatten(0, 1)
    most = int(membership_RTK.sum(-1).max())
    if not separate:
        kept = None if sinks_RT is None else _at(membership_RTK, key_where)
        return Lists(key_index, key_offsets, key_index, key_offsets, None, kept, None, most > 1,
                     *codes)  # fmt: skip
    repeats = most > 1 and int(own_RTK.sum(-1).max()) > 1
    query_index, query_where, query_offsets = _entries(membership_RTK)
    stairs = _at(keys_RTK.cumsum(1, dtype=torch.int32), query_where)
    first = None
    if sinks_RT is not None and most > 1 and not repeats:
        earlier_RTK = membership_RTK.cumsum(-1, dtype=torch.int32) > 1
        first = ~_at(earlier_RTK, query_where)
    return Lists(key_index, key_offsets, query_index, query_offsets, stairs, None, first, repeats,
                 *codes)  # fmt: skip


def _entries(membership_RTK: Tensor) -> tuple[Tensor, Tensor, list[int]]:
    """Rows ``r * T + t``, places in (R, K, T) and offsets of the True entries, by (r, g, t)."""
    routings, tokens, groups = membership_RTK.shape
    by_group = membership_RTK.transpose(1, 2).reshape(-1)
    where = by_group.nonzero().squeeze(1)
    counts = by_group.view(routings * groups, tokens).sum(1).tolist()
    index = where % tokens
    if routings > 1:
        index = index + where.div(groups * tokens, rounding_mode="floor") * tokens
    return index, where, [0, *accumulate(counts)]


def _at(values_RTK: Tensor, where_N: Tensor) -> Tensor:
    return values_RTK.transpose(1, 2).reshape(-1)[where_N]


def code_size(scale: float, dtype: torch.dtype) -> float:
    """The power of two c with which a shared group lowers a logit by c^2 * scale.

    A pair that is counted elsewhere with its full weight is left a share of exp(-c^2 * scale) of
    it: below half a unit in the last place of the accumulation (float32 for half precision).
    """
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
