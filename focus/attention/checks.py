"""Validation shared by every attention path: shapes, dtypes, finiteness, memberships.

Shape suffixes: B batch, T tokens, H query heads, Hk key heads, D head dimension, K groups,
E further keys of a query.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


@dataclass(frozen=True)
class Inputs:
    """Arguments of an attention call after validation.

    query (B, H, T, D); key, value (B, Hk, T, D); membership and key_membership (B, Hm, T, K)
    bool with Hm = 1 or Hk, rows of padding tokens cleared; where query heads have memberships of
    their own, keys and values are repeated for each, so that Hk = H; fewest: the least number of
    groups of a real query and of a real key, together; real (B, T) bool or None when every token is
    real; extra (B, T, E) int64 further keys of each query, without those that every head has anyway
    (:func:`distinct`), or None.

    As :func:`check_arguments` gives them, memberships are (B, 1 or Hk or, of queries, H, T, K) each
    for itself, padding tokens may hold groups, nothing is repeated and fewest is 0.
    """

    query: Tensor
    key: Tensor
    value: Tensor
    membership: Tensor
    key_membership: Tensor
    separate_keys: bool
    fewest: int
    real: Tensor | None
    window: int
    sinks: int
    scale: float
    extra: Tensor | None = None


def validate(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    membership: Tensor,
    window: int,
    sinks: int,
    scale: float | None,
    key_padding_mask: Tensor | None,
    key_membership: Tensor | None,
    extra_keys: Tensor | None = None,
) -> Inputs:
    """Checks every argument and brings memberships to (B, Hm, T, K).

    Raises:
        ValueError: what is wrong with which argument, and what to do.
    """
    return check_contents(
        check_arguments(
            query, key, value, membership, window, sinks, scale, key_padding_mask, key_membership,
            extra_keys,
        )
    )  # fmt: skip


def check_arguments(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    membership: Tensor,
    window: int,
    sinks: int,
    scale: float | None,
    key_padding_mask: Tensor | None,
    key_membership: Tensor | None,
    extra_keys: Tensor | None = None,
) -> Inputs:
    """All of :func:`validate` that looks at no values, those of the further keys aside.

    Raises:
        ValueError: what is wrong with which argument, and what to do.
    """
    _check_heads(query, key, value)
    _check_number("window", window, 1)
    _check_number("sinks", sinks, 0)
    scale = 1.0 / math.sqrt(query.shape[-1]) if scale is None else float(scale)
    if not (math.isfinite(scale) and scale > 0):
        raise ValueError(f"scale: must be finite and > 0, got {scale}")
    real = _real_tokens(key_padding_mask, query)
    both = key.shape[1], query.shape[1]
    query_groups = key_groups = _membership("membership", membership, query, both)
    if key_membership is not None:
        key_groups = _membership("key_membership", key_membership, query, both[:1])
    if query_groups.shape[-1] != key_groups.shape[-1]:
        raise ValueError(
            f"key_membership: has {key_groups.shape[-1]} groups where membership has "
            f"{query_groups.shape[-1]}; both must use the same K"
        )
    extra = None
    if extra_keys is not None:
        _check_extra(extra_keys, query)
    if extra_keys is not None and extra_keys.shape[2]:
        extra = distinct(extra_keys.to(query.device), window, sinks, real)
    return Inputs(query, key, value, query_groups, key_groups, key_membership is not None, 0, real,
                  window, sinks, scale, extra)  # fmt: skip


def check_contents(x: Inputs) -> Inputs:
    """What :func:`check_arguments` leaves: finite values, a group for every real token; and
    memberships as :class:`Inputs` describes them.

    Raises:
        ValueError: what is wrong with which argument, and what to do.
    """
    query, key, value, real, separate = x.query, x.key, x.value, x.real, x.separate_keys
    _check_finite(query, key, value, real)
    query_groups, fewest = _count_groups("membership", x.membership, real)
    key_groups, fewest_keys = query_groups, fewest
    if separate:
        key_groups, fewest_keys = _count_groups("key_membership", x.key_membership, real)
    heads = max(query_groups.shape[1], key_groups.shape[1])
    query_groups = query_groups.expand(-1, heads, -1, -1)
    if heads > key.shape[1]:
        key, value = (for_query_heads(each, heads) for each in (key, value))
        key_groups = for_query_heads(key_groups, heads) if separate else query_groups
    key_groups = key_groups.expand(-1, heads, -1, -1)
    return replace(x, key=key, value=value, membership=query_groups, key_membership=key_groups,
                   fewest=fewest + fewest_keys)  # fmt: skip


def _check_heads(query: Tensor, key: Tensor, value: Tensor) -> None:
    for name, tensor in (("query", query), ("key", key), ("value", value)):
        if tensor.dim() != 4:
            raise ValueError(
                f"{name}: must have shape (batch, heads, tokens, head_dim), got "
                f"{tuple(tensor.shape)}"
            )
        if tensor.dtype not in FLOATS:
            raise ValueError(f"{name}: must be floating point, got {tensor.dtype}")
        if tensor.dtype != query.dtype or tensor.device != query.device:
            raise ValueError(
                f"{name}: is {tensor.dtype} on {tensor.device} where query is {query.dtype} on "
                f"{query.device}; bring all three to one dtype and device"
            )
    if key.shape != value.shape:
        raise ValueError(f"value: shape {tuple(value.shape)} differs from key's {tuple(key.shape)}")
    batch, heads, tokens, dim = query.shape
    if (key.shape[0], key.shape[2], key.shape[3]) != (batch, tokens, dim):
        raise ValueError(
            f"key: shape {tuple(key.shape)} does not fit query {tuple(query.shape)}; batch, tokens "
            "and head_dim must be equal (for a cached step use the decoding path)"
        )
    if tokens == 0 or batch == 0:
        raise ValueError(f"query: needs at least one sequence and one token, got {query.shape}")
    if heads == 0 or key.shape[1] == 0 or heads % key.shape[1]:
        raise ValueError(
            f"key: {key.shape[1]} key heads do not divide {heads} query heads; grouped-query "
            "attention needs a whole number of query heads a key head"
        )


def _check_number(name: str, value: int, minimum: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < minimum:
        raise ValueError(f"{name}: must be a whole number >= {minimum}, got {value!r}")


def _real_tokens(key_padding_mask: Tensor | None, query: Tensor) -> Tensor | None:
    if key_padding_mask is None:
        return None
    expected = (query.shape[0], query.shape[2])
    if tuple(key_padding_mask.shape) != expected:
        raise ValueError(
            f"key_padding_mask: must have shape (batch, tokens) = {expected}, got "
            f"{tuple(key_padding_mask.shape)}"
        )
    if key_padding_mask.dtype != torch.bool:
        raise ValueError(
            f"key_padding_mask: must be bool with True for real tokens, got "
            f"{key_padding_mask.dtype}; pass mask.bool()"
        )
    real = key_padding_mask.to(query.device)
    return None if bool(real.all()) else real


def _check_finite(query: Tensor, key: Tensor, value: Tensor, real: Tensor | None) -> None:
    for name, tensor in (("query", query), ("key", key), ("value", value)):
        # The sum of squares-free check reads the tensor once and allocates nothing of its size;
        # only when it fails are padding positions, which may hold anything, told apart.
        if math.isfinite(tensor.detach().sum().item()):
            continue
        finite_BT = torch.isfinite(tensor.detach()).all(-1).all(1)
        if real is not None:
            finite_BT = finite_BT | ~real
        if not bool(finite_BT.all()):
            raise ValueError(
                f"{name}: holds NaN or infinity at a real token; find where it arises before "
                "attention (a learning rate too high, or an overflow in half precision)"
            )


def _membership(name: str, membership: Tensor, query: Tensor, heads: tuple[int, ...]) -> Tensor:
    """The membership as (B, Hm, T, K)."""
    batch, _, tokens, _ = query.shape
    if membership.dtype != torch.bool:
        raise ValueError(f"{name}: must be bool, got {membership.dtype}")
    if membership.dim() == 3:
        membership = membership.unsqueeze(1)
    shape = tuple(membership.shape)
    if len(shape) != 4 or shape[0] != batch or shape[2] != tokens or shape[3] == 0:
        raise ValueError(
            f"{name}: must have shape (batch, tokens, groups) or (batch, heads, tokens, "
            f"groups) with batch {batch}, tokens {tokens}, got {shape}"
        )
    if shape[1] not in (1, *heads):
        each = "one for each key head" + (" or query head" if len(heads) > 1 else "")
        raise ValueError(
            f"{name}: has {shape[1]} routings where key has {heads[0]} heads and query "
            f"{query.shape[1]}; give one for all heads or {each}"
        )
    return membership.to(query.device)


def _check_extra(extra_keys: Tensor, query: Tensor) -> None:
    batch, _, tokens, _ = query.shape
    shape = tuple(extra_keys.shape)
    if extra_keys.dtype != torch.int64 or len(shape) != 3 or shape[:2] != (batch, tokens):
        raise ValueError(
            f"extra_keys: must be int64 of shape (batch, tokens, keys) with batch {batch}, tokens "
            f"{tokens}, got {extra_keys.dtype} of shape {shape}"
        )
    position = torch.arange(tokens, device=extra_keys.device)
    if bool(((extra_keys > position[:, None]) | (extra_keys < -1)).any()):
        raise ValueError(
            "extra_keys: names a key after its query, or a position below -1; give positions of "
            "earlier tokens, -1 where there is none"
        )


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


def _count_groups(name: str, membership: Tensor, real: Tensor | None) -> tuple[Tensor, int]:
    """The membership without padding, and how many groups the real token has that has fewest."""
    counts = membership.sum(-1, dtype=torch.int32)
    if real is not None:
        membership = membership & real[:, None, :, None]
        counts = counts.masked_fill(~real[:, None, :], membership.shape[3])
    fewest = int(counts.min())
    if fewest == 0:
        raise ValueError(
            f"{name}: a real token belongs to no group; give every real token at least one, or "
            "mark it as padding in key_padding_mask"
        )
    return membership, fewest


def for_query_heads(x: Tensor, heads: int) -> Tensor:
    """(B, Hk, ...) repeated to (B, heads, ...): each key head for the query heads that share it; as
    it is where there are as many or more."""
    return x if x.shape[1] >= heads else x.repeat_interleave(heads // x.shape[1], 1)


def sink_tokens(real: Tensor | None, batch: int, tokens: int, sinks: int,
                device: torch.device) -> Tensor:  # fmt: skip
    """(B, T) bool: the first ``sinks`` real tokens of each sequence."""
    if real is None:
        return (torch.arange(tokens, device=device) < sinks).expand(batch, tokens)
    return real & (real.cumsum(-1) <= sinks)


def real_spans(x: Inputs) -> list[tuple[int, int]] | None:
    """First and last + 1 real token of every sequence; None if padding stands between them."""
    batch, tokens = x.query.shape[0], x.query.shape[2]
    if x.real is None:
        return [(0, tokens)] * batch
    starts, counts = x.real.int().argmax(1), x.real.sum(1)
    position = torch.arange(tokens, device=x.real.device)
    inside = (position >= starts[:, None]) & (position < (starts + counts)[:, None])
    if not torch.equal(inside, x.real):
        return None
    return [(start, stop) for start, stop in torch.stack([starts, starts + counts], 1).tolist()]
