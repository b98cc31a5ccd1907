"""Further keys of single queries, beside those that the mask gives them: a few positions a query.

What they add is merged into a call's result by log-sum-exp, row by row, so that any kernel that
returns one can do the rest. A key that the mask keeps anyway is left out for the heads where it is
kept, so no pair counts twice.

Shape suffixes: B batch, Hm routings (1, key heads or query heads), T tokens, C tokens of a part, E
further keys of a query, H query heads, Hk key heads, D head dimension, K groups.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from focus.attention.checks import Inputs, for_query_heads

ROWS = 1 << 22  # numbers of gathered keys held at once


def needed(membership: Tensor, key_membership: Tensor, extra: Tensor) -> Tensor:
    """(B, Hm, C, E) bool: which further keys share no group with their query.

    Args:
        membership: (B, Hm, C, K) of the queries.
        key_membership: (B, Hm or 1, T, K) of all keys.
        extra: (B, C, E), as :class:`focus.attention.checks.Inputs` has them.
    """
    batch, _, _, groups = key_membership.shape
    at = extra.clamp_min(0).flatten(1)[:, None, :, None]
    keys = key_membership.gather(2, at.expand(batch, key_membership.shape[1], -1, groups))
    shared = (keys.unflatten(2, extra.shape[1:]) & membership.unsqueeze(3)).any(-1)
    return ~shared & (extra >= 0).unsqueeze(1)


@dataclass(frozen=True)
class _Part:
    """Some queries and their further keys: key, value (B, Hk, C, E, D), weights' logits
    (B, Hk, G, C, E) with -inf where a key does not count; at (B, C * E) are the keys' positions."""

    rows: slice
    at: Tensor
    query: Tensor
    key: Tensor
    value: Tensor
    logits: Tensor


def _parts(query: Tensor, key: Tensor, value: Tensor, x: Inputs) -> Iterator[_Part]:
    if x.extra is None:
        return
    batch, key_heads, tokens, dim = key.shape
    heads = query.shape[1]
    wide = torch.promote_types(query.dtype, torch.float32)
    step = max(1, ROWS // (batch * heads * x.extra.shape[2] * dim))
    for start in range(0, tokens, step):
        rows = slice(start, start + step)
        extra = x.extra[:, rows]
        if not bool((extra >= 0).any()):
            continue
        at = extra.clamp_min(0).flatten(1)
        index = at[:, None, :, None].expand(-1, key_heads, -1, dim)
        # 0 * NaN is NaN: what stands at position 0 for "none" may be padding.
        none = (extra < 0)[:, None, :, :, None]
        keys, values = (
            each.gather(2, index).unflatten(2, extra.shape[1:]).to(wide).masked_fill_(none, 0.0)
            for each in (key, value)
        )
        own = query[:, :, rows].to(wide).unflatten(1, (key_heads, -1))
        counts = for_query_heads(needed(x.membership[:, :, rows], x.key_membership, extra), heads)
        counts = counts.expand(-1, heads, -1, -1).unflatten(1, (key_heads, -1))
        logits = torch.einsum("bhgcd,bhced->bhgce", own, keys) * x.scale
        yield _Part(rows, at, own, keys, values, logits.masked_fill(~counts, -torch.inf))


def add_extra(query: Tensor, key: Tensor, value: Tensor, x: Inputs, out: Tensor,
              lse: Tensor) -> None:  # fmt: skip
    """Merges what the further keys say into out (B, H, T, D) and lse (B, H, T), in place.

    Args:
        query: (B, H, T, D); key, value: (B, Hk, T, D), as ``x`` has them.
        x: checked inputs.
        out, lse: of the mask alone; natural logarithm.
    """
    for part in _parts(query, key, value, x):
        heads = key.shape[1], -1
        before = lse[:, :, part.rows].to(part.logits.dtype).unflatten(1, heads)
        total = torch.logaddexp(before, torch.logsumexp(part.logits, -1))
        # Nothing merged with nothing (a row of padding) is -inf less -inf: it stays nothing.
        weight = torch.exp(part.logits - total.unsqueeze(-1)).nan_to_num_(0.0)
        added = torch.einsum("bhgce,bhced->bhgcd", weight, part.value)
        faded = torch.exp(before - total).nan_to_num_(0.0).unsqueeze(-1)
        own = out[:, :, part.rows]
        own.copy_(own.to(added.dtype) * faded.flatten(1, 2) + added.flatten(1, 2))
        lse[:, :, part.rows] = total.flatten(1, 2).to(lse.dtype)


def add_extra_grads(grad: Tensor, query: Tensor, key: Tensor, value: Tensor, x: Inputs,
                    out: Tensor, lse: Tensor, totals: tuple[Tensor, Tensor, Tensor],
                    ) -> None:  # fmt: skip
    """Adds the further keys' gradients in query, key and value to ``totals``, given the whole
    softmax's out and lse."""
    d_query, d_key, d_value = totals
    for part in _parts(query, key, value, x):
        heads, wide = (key.shape[1], -1), part.logits.dtype
        own_grad, own_out = (
            each[:, :, part.rows].to(wide).unflatten(1, heads) for each in (grad, out)
        )
        own_lse = lse[:, :, part.rows].to(wide).unflatten(1, heads).unsqueeze(-1)
        weight = torch.exp(part.logits - own_lse).nan_to_num_(0.0)
        inner = torch.einsum("bhgcd,bhced->bhgce", own_grad, part.value)
        d_logits = weight * (inner - (own_grad * own_out).sum(-1, keepdim=True)) * x.scale
        own = torch.einsum("bhgce,bhced->bhgcd", d_logits, part.key)
        d_query[:, :, part.rows] += own.flatten(1, 2).to(d_query.dtype)
        _scatter(d_key, part, torch.einsum("bhgce,bhgcd->bhced", d_logits, part.query))
        _scatter(d_value, part, torch.einsum("bhgce,bhgcd->bhced", weight, own_grad))


def _scatter(total_BHTD: Tensor, part: _Part, grads_BHCED: Tensor) -> None:
    for own, at, grads in zip(total_BHTD, part.at, grads_BHCED.flatten(2, 3), strict=True):
        own.index_add_(1, at, grads.to(own.dtype))
