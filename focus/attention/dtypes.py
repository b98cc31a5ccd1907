"""In which dtype queries, keys and values attend.

Shape suffixes: B batch, T tokens, H query heads, Hk key heads, D head dimension.
"""

from __future__ import annotations

import torch
from torch import Tensor


def autocast_on(device: str) -> bool:
    """Whether autocast is on for a type of device."""
    known = device == "cpu" or torch.amp.is_autocast_available(device)
    return known and torch.is_autocast_enabled(device)


def as_autocast(query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """As ``scaled_dot_product_attention`` takes them under autocast: all but float64 narrowed."""
    device = query.device.type
    if not autocast_on(device):
        return query, key, value
    dtype = torch.get_autocast_dtype(device)
    cast = (torch.float16, torch.bfloat16, torch.float32)
    query, key, value = (x.to(dtype) if x.dtype in cast else x for x in (query, key, value))
    return query, key, value


def as_one_dtype(query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """In autocast's dtype (rotary positions come in float32), or else in the widest."""
    query, key, value = as_autocast(query, key, value)
    if query.dtype == key.dtype == value.dtype:
        return query, key, value
    widest = torch.promote_types(torch.promote_types(query.dtype, key.dtype), value.dtype)
    return query.to(widest), key.to(widest), value.to(widest)
