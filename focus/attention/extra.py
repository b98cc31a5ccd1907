"""Further keys of single queries, beside those that the mask gives them: a few positions a query.

What they add is merged into a call's result by log-sum-exp, row by row, so that any kernel that
returns one can do the rest. A key that the mask keeps anyway is left out for the heads where it is
kept, so no pair counts twice.

Shape suffixes: B batch, Hm routings (1, key heads or query heads), T tokens, C tokens of a part, E
further keys of a query, H query heads, Hk key heads, G query heads of a key head, D head dimension,
K groups.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from focus.attention.checks import Inputs, for_query_heads, sink_tokens

ROWS = 1 << 22  # numbers of gathered keys, for each query head, held at once


def settle(x: Inputs) -> Inputs:
    """Which tokens are real, and which further keys count.

    Raises:
        ValueError: on CPU, a further key that is none of the query's earlier tokens.
    """
    real, extra = x.real, x.extra
    if real is None and extra is None:
        return x
    if real is not None and x.on_cpu and bool(real.all()):
        real = None
    if extra is not None:
        if x.on_cpu:
            _check_positions(extra)
        extra = distinct(extra, x.window, x.sinks, real)
    return replace(x, real=real, extra=extra)


def distinct(extra_BTE: Tensor, window: int, sinks: int, real: Tensor | None) -> Tensor:
    """Further keys (B, T, E) with -1 in place of those that every head has anyway: within the
    window, sinks, named twice; and of what is or stands beside padding."""
    batch, tokens, _ = extra_BTE.shape
    own = extra_BTE.sort(-1, descending=True).values
    position = torch.arange(tokens, device=own.device)
    out = own > position[:, None] - window
    out[..., 1:] |= own[..., 1:] == own[..., :-1]
    is_sink = sink_tokens(real, batch, tokens, sinks, own.device)
    barred = is_sink if real is None else is_sink | ~real
    out |= barred.gather(1, own.clamp_min(0).flatten(1)).view_as(own)
    if real is not None:
        out |= ~real.unsqueeze(-1)
    return own.masked_fill_(out, -1)


def _check_positions(extra: Tensor) -> None:
    position = torch.arange(extra.shape[1], device=extra.device)
    if bool(((extra > position[:, None]) | (extra < -1)).any()):
        raise ValueError(
            "extra_keys: names a key after its query, or a position below -1; give positions of "
            "earlier tokens, -1 where there is none"
        )


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
    """Some queries and their further keys: query (B, Hk, G, C, D) with G query heads of a key head,
    zero where idle; key, value (B, Hk, C, E, D); logits (B, Hk, G, C, E), -inf where a key does not
    count; at (B, C * E) are the keys' positions; idle (B, 1, 1, C) are the queries that have none,
    those of padding among them."""

    rows: slice
    at: Tensor
    idle: Tensor
    query: Tensor
    key: Tensor
    value: Tensor
    logits: Tensor

    def of(self, x_BHTD: Tensor) -> Tensor:
        """This part's rows of a tensor of query heads."""
        dtype, key_heads = self.logits.dtype, self.key.shape[1]
        return _rows(x_BHTD[:, :, self.rows].to(dtype), key_heads, self.idle)

    def lse_of(self, lse_BHT: Tensor) -> Tensor:
        """Likewise (B, Hk, G, C)."""
        return self.of(lse_BHT.unsqueeze(-1)).squeeze(-1)


def _rows(x_BHCD: Tensor, key_heads: int, idle: Tensor) -> Tensor:
    """(B, Hk, G, C, D), zero where idle: what stands in padding may be anything, and 0 * NaN is
    NaN."""
    return x_BHCD.unflatten(1, (key_heads, -1)).masked_fill(idle.unsqueeze(-1), 0.0)


def _parts(query: Tensor, key: Tensor, value: Tensor, x: Inputs) -> Iterator[_Part]:
    if x.extra is None:
        return
    batch, heads, tokens, dim = query.shape
    step = max(1, ROWS // (batch * heads * x.extra.shape[2] * dim))
    for start in range(0, tokens, step):
        rows = slice(start, start + step)
        if bool((x.extra[:, rows] >= 0).any()):
            yield _part(query, key, value, x, rows)


def _part(query: Tensor, key: Tensor, value: Tensor, x: Inputs, rows: slice) -> _Part:
    if x.extra is None:
        raise RuntimeError("there are no further keys")
    extra, key_heads, heads = x.extra[:, rows], key.shape[1], query.shape[1]
    wide = torch.promote_types(query.dtype, torch.float32)
    at, none = extra.clamp_min(0).flatten(1), extra < 0
    index = at[:, None, :, None].expand(-1, key_heads, -1, key.shape[3])
    keys, values = (
        each.gather(2, index).unflatten(2, extra.shape[1:]).to(wide)
        .masked_fill_(none[:, None, :, :, None], 0.0)
        for each in (key, value)
    )  # fmt: skip
    idle = none.all(-1)[:, None, None]
    own = _rows(query[:, :, rows].to(wide), key_heads, idle)
    counts = for_query_heads(needed(x.membership[:, :, rows], x.key_membership, extra), heads)
    logits = torch.einsum("bhgcd,bhced->bhgce", own, keys) * x.scale
    logits = logits.masked_fill(~counts.unflatten(1, (key_heads, -1)), -torch.inf)
    return _Part(rows, at, idle, own, keys, values, logits)


def add_extra(query: Tensor, key: Tensor, value: Tensor, x: Inputs, out: Tensor,
              lse: Tensor) -> None:  # fmt: skip
    """Merges what the further keys say into out (B, H, T, D) and lse (B, H, T), in place.

    Args:
        query: (B, H, T, D); key, value: (B, Hk, T, D), as ``x`` has them.
        x: checked inputs.
        out, lse: of the mask alone; natural logarithm.
    """
    for part in _parts(query, key, value, x):
        before = part.lse_of(lse)
        total = torch.logaddexp(before, torch.logsumexp(part.logits, -1))
        weight = torch.exp(part.logits - total.unsqueeze(-1))
        merged = torch.einsum("bhgce,bhced->bhgcd", weight, part.value)
        merged += part.of(out) * torch.exp(before - total).unsqueeze(-1)
        idle = part.idle.flatten(1, 2)
        own, own_lse = out[:, :, part.rows], lse[:, :, part.rows]
        own.copy_(torch.where(idle.unsqueeze(-1), own, merged.flatten(1, 2).to(own.dtype)))
        own_lse.copy_(torch.where(idle, own_lse, total.flatten(1, 2).to(lse.dtype)))


def add_extra_grads(grad: Tensor, query: Tensor, key: Tensor, value: Tensor, x: Inputs,
                    out: Tensor, lse: Tensor, totals: tuple[Tensor, Tensor, Tensor],
                    ) -> None:  # fmt: skip
    """Adds the further keys' gradients in query, key and value to ``totals``, given the whole
    softmax's out and lse."""
    d_query, d_key, d_value = totals
    for part in _parts(query, key, value, x):
        own_grad = part.of(grad)
        weight = torch.exp(part.logits - part.lse_of(lse).unsqueeze(-1))
        inner = torch.einsum("bhgcd,bhced->bhgce", own_grad, part.value)
        mean = (own_grad * part.of(out)).sum(-1, keepdim=True)
        d_logits = weight * (inner - mean) * x.scale
        own = torch.einsum("bhgce,bhced->bhgcd", d_logits, part.key)
        d_query[:, :, part.rows] += own.flatten(1, 2).to(d_query.dtype)
        _scatter(d_key, part, torch.einsum("bhgce,bhgcd->bhced", d_logits, part.query))
        _scatter(d_value, part, torch.einsum("bhgce,bhgcd->bhced", weight, own_grad))


def _scatter(total_BHTD: Tensor, part: _Part, grads_BHCED: Tensor) -> None:
    for own, at, grads in zip(total_BHTD, part.at, grads_BHCED.flatten(2, 3), strict=True):
        own.index_add_(1, at, grads.to(own.dtype))
