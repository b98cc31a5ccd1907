"""Further keys of single queries, beside those that the mask gives them: a few positions a query.

What they add is merged into a call's result by log-sum-exp, row by row, so that any kernel that
returns one can do the rest. A key that the mask keeps anyway is left out for the heads where it is
kept, so no pair counts twice.

Shape suffixes: B batch, Hm routings (1, key heads or query heads), T tokens, C tokens of a part, E
further keys of a query, H query heads, Hk key heads, D head dimension, K groups.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor

from focus.attention.checks import Inputs, for_query_heads, sink_tokens

ROWS = 1 << 22  # numbers of gathered keys, for each query head, held at once


def settle(x: Inputs) -> Inputs:
    """Which tokens are real, and which further keys count; on CPU refuses one that is none of the
    query's earlier tokens."""
    real, extra = x.real, x.extra
    if real is None and extra is None:
        return x
    if real is not None and x.on_cpu and bool(real.all()):
        real = None
    if extra is not None and not x.settled:
        position = torch.arange(extra.shape[1], device=extra.device)
        if x.on_cpu and bool(((extra > position[:, None]) | (extra < -1)).any()):
            raise ValueError(
                "extra_keys: names a key after its query, or a position below -1; give positions "
                "of earlier tokens, -1 where there is none"
            )
        extra = distinct(extra, x.window, x.sinks, real)
    return replace(x, real=real, extra=extra, settled=True)


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


def _parts(x: Inputs) -> Iterator[tuple[slice, Tensor, Tensor, Tensor, Tensor, Tensor]]:
    """Some queries at a time: their rows, where their further keys stand (B, Hk, C * E, D), query
    (B, H, C, D), key and value (B, H, C, E, D), and logits (B, H, C, E), -inf where a key does not
    count."""
    if x.extra is None:
        return
    batch, heads, tokens, dim = x.query.shape
    wide = torch.promote_types(x.query.dtype, torch.float32)
    step = max(1, ROWS // (batch * heads * x.extra.shape[2] * dim))
    for start in range(0, tokens, step):
        rows = slice(start, start + step)
        own, at = x.extra[:, rows], x.extra[:, rows].clamp_min(0).flatten(1)
        index = at[:, None, :, None].expand(-1, x.key.shape[1], -1, dim)
        key, value = (
            for_query_heads(each.gather(2, index), heads).unflatten(2, own.shape[1:])
            .to(wide).masked_fill_((own < 0)[:, None, :, :, None], 0.0)
            for each in (x.key, x.value)
        )  # fmt: skip
        counts = for_query_heads(needed(x.membership[:, :, rows], x.key_membership, own), heads)
        query = x.query[:, :, rows].to(wide)
        logits = torch.einsum("bhcd,bhced->bhce", query, key) * x.scale
        yield rows, index, query, key, value, logits.masked_fill_(~counts, -torch.inf)


def add_extra(x: Inputs, out: Tensor, lse: Tensor) -> None:
    """Merges what the further keys say into out (B, H, T, D) and lse (B, H, T), in place.

    Args:
        x: checked inputs, with zeros in padding.
        out, lse: of the mask alone, finite; natural logarithm.
    """
    for rows, _, _, _, value, logits in _parts(x):
        before = lse[:, :, rows]
        total = torch.logaddexp(before, logits.logsumexp(-1))
        weight = torch.exp(logits - total.unsqueeze(-1))
        kept = out[:, :, rows] * torch.exp(before - total).unsqueeze(-1)
        out[:, :, rows] = kept + torch.einsum("bhce,bhced->bhcd", weight, value)
        lse[:, :, rows] = total


def add_extra_grads(grad: Tensor, x: Inputs, out: Tensor, lse: Tensor,
                    totals: tuple[Tensor, Tensor, Tensor]) -> None:  # fmt: skip
    """Adds the further keys' gradients in query, key and value to ``totals``, given the whole
    softmax's out and lse."""
    d_query, d_key, d_value = totals
    for rows, index, query, key, value, logits in _parts(x):
        own = grad[:, :, rows].to(logits.dtype)
        weight = torch.exp(logits - lse[:, :, rows, None])
        mean = (own * out[:, :, rows]).sum(-1, keepdim=True)
        inner = torch.einsum("bhcd,bhced->bhce", own, value)
        d_logits = weight * (inner - mean) * x.scale
        d_query[:, :, rows] += torch.einsum("bhce,bhced->bhcd", d_logits, key)
        for total, left, right in ((d_key, d_logits, query), (d_value, weight, own)):
            grads = torch.einsum("bhce,bhcd->bhced", left, right).flatten(2, 3)
            total.scatter_add_(2, index, grads.unflatten(1, (total.shape[1], -1)).sum(2))
