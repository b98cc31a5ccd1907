"""Validation shared by every attention path: shapes, dtypes, finiteness, memberships.

Shape suffixes: B batch, T tokens, H query heads, Hk key heads, D head dimension, K groups,
E further keys of a query.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from focus.attention.dtypes import as_autocast

FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


@dataclass(frozen=True)
class Inputs:
    """Arguments of an attention call.

    query (B, H, T, D); key, value (B, Hk, T, D); membership (B, Hm, T, K) bool with Hm = 1, Hk or
    H; key_membership likewise where keys are routed otherwise, else the same tensor;
    real (B, T) bool, False for padding, or None when every token is real; extra (B, T, E) int64
    further keys of each query, -1: none, or None.

    As :func:`check_arguments` gives them, nothing is known of values.
    :func:`focus.attention.extra.settle` then leaves real None where it can, and extra without the
    keys that every head has anyway (as it is already where ``settled``);
    :func:`check_contents` leaves memberships with one Hm for both, rows of padding cleared, and
    ``fewest``, the least number of groups of a query and of a key together (0: not counted).
    """

    query: Tensor
    key: Tensor
    value: Tensor
    membership: Tensor
    key_membership: Tensor
    real: Tensor | None
    extra: Tensor | None
    window: int
    sinks: int
    scale: float
    fewest: int = 0
    settled: bool = False

    @property
    def separate_keys(self) -> bool:
        """Whether keys are routed otherwise than queries."""
        return self.key_membership is not self.membership

    @property
    def on_cpu(self) -> bool:
        """Whether values may be looked at: elsewhere the host would wait for the device."""
        return self.query.device.type == "cpu"


def check_arguments(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    membership: Tensor,
    window: int,
    sinks: int,
    scale: float | None = None,
    key_padding_mask: Tensor | None = None,
    key_membership: Tensor | None = None,
    extra_keys: Tensor | None = None,
) -> Inputs:
    """Refuses what of an attention call can be told without looking at values; arguments as of
    :func:`focus.focus_attention`. Under autocast query, key and value are cast as torch casts those
    of its own attention."""
    _check_kinds(Tensor, query=query, key=key, value=value, membership=membership)
    _check_kinds((Tensor, type(None)), key_padding_mask=key_padding_mask,
                 key_membership=key_membership, extra_keys=extra_keys)  # fmt: skip
    query, key, value = as_autocast(query, key, value)
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
        extra = extra_keys.to(query.device) if extra_keys.shape[2] else None
    return Inputs(query, key, value, query_groups, key_groups, real, extra, window, sinks, scale)


def check_contents(x: Inputs) -> Inputs:
    """Memberships as :class:`Inputs` has them; on CPU refuses a real token without a group."""
    query_groups, fewest = _count_groups("membership", x.membership, x)
    if not x.separate_keys:
        return replace(x, membership=query_groups, key_membership=query_groups, fewest=2 * fewest)
    key_groups, fewest_keys = _count_groups("key_membership", x.key_membership, x)
    heads = max(query_groups.shape[1], key_groups.shape[1])
    query_groups = query_groups.expand(-1, heads, -1, -1)
    key_groups = for_query_heads(key_groups, heads)
    return replace(x, membership=query_groups, key_membership=key_groups,
                   fewest=fewest + fewest_keys)  # fmt: skip


def learns(*tensors: Tensor) -> bool:
    """Whether a gradient in one of them is asked for."""
    return torch.is_grad_enabled() and any(each.requires_grad for each in tensors)


def check_finite(x: Inputs) -> None:
    """On CPU refuses NaN or infinity at a real token."""
    if x.on_cpu:
        refuse_not_finite(x.query, x.key, x.value, x.real)


def refuse_not_finite(query: Tensor, key: Tensor, value: Tensor, real: Tensor | None) -> None:
    """The same for tensors (B, H, T, D) that are on a CPU, padding by ``real`` (B, T) left out."""
    for name, tensor in (("query", query), ("key", key), ("value", value)):
        if not is_finite(tensor, real):
            raise ValueError(
                f"{name}: holds NaN or infinity at a real token; find where it arises before "
                "attention (a learning rate too high, or an overflow in half precision)"
            )


def is_finite(tensor: Tensor, real: Tensor | None) -> bool:
    """Whether no real token (B, T) of a tensor (B, H, T, D) holds NaN or infinity."""
    # A sum reads the tensor once and allocates nothing of its size; only when it fails are padding
    # positions, which may hold anything, told apart.
    if math.isfinite(tensor.detach().sum().item()):
        return True
    finite_BT = torch.isfinite(tensor.detach()).all(-1).all(1)
    return bool((finite_BT if real is None else finite_BT | ~real).all())


def _check_kinds(kinds: type | tuple[type, ...], **tensors: object) -> None:
    for name, each in tensors.items():
        if not isinstance(each, kinds):
            raise ValueError(
                f"{name}: must be a torch.Tensor, got {type(each).__name__}; see torch.as_tensor"
            )


def _check_heads(query: Tensor, key: Tensor, value: Tensor) -> None:
    for name, tensor in (("query", query), ("key", key), ("value", value)):
        if tensor.dim() != 4:
            raise ValueError(
                f"{name}: must have shape (batch, heads, tokens, head_dim), got "
                f"{tuple(tensor.shape)}"
            )
        if tensor.dtype not in FLOATS:
            raise ValueError(f"{name}: must be floating point, got {tensor.dtype}")
        if tensor.shape[3] == 0:
            raise ValueError(f"{name}: head_dim must be at least 1, got {tuple(tensor.shape)}")
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
    return key_padding_mask.to(query.device)


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


def _count_groups(name: str, membership: Tensor, x: Inputs) -> tuple[Tensor, int]:
    """The membership without padding, and how many groups the real token has that has fewest."""
    if x.real is not None:
        membership = membership & x.real[:, None, :, None]
    if not x.on_cpu:
        return membership, 0
    counts = membership.sum(-1, dtype=torch.int32)
    if x.real is not None:
        counts = counts.masked_fill(~x.real[:, None, :], membership.shape[3])
    fewest = int(counts.min())
    if fewest == 0:
        raise ValueError(
            f"{name}: a real token belongs to no group; give every real token at least one, or "
            "mark it as padding in key_padding_mask"
        )
    return membership, fewest


def cleared(x: Tensor, real: Tensor | None) -> Tensor:
    """(B, H, T, D) with zeros in padding, which may hold anything: 0 * NaN is NaN."""
    return x if real is None else x.masked_fill(~real[:, None, :, None], 0.0)


def named_keys(further: Tensor, first: int, count: int) -> Tensor:
    """(B, 1, C, N) bool: which of the N keys from ``first`` on are named for a query, by its
    ``further`` keys (B, C, E)."""
    at = further - first
    at = at.masked_fill((at < 0) | (at >= count), count)  # one column beyond the last
    found = torch.zeros(*at.shape[:2], count + 1, dtype=torch.bool, device=at.device)
    return found.scatter_(2, at, True)[:, None, :, :count]


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
