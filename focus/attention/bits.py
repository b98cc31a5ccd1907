"""Sets of groups as bits, 64 to a word.

Shape suffixes: K groups, W words.
"""

from __future__ import annotations

import torch
from torch import Tensor


def pack(groups: Tensor) -> Tensor:
    """(..., K) bool as bits, (..., W) int64."""
    bit = torch.arange(groups.shape[-1], device=groups.device)
    words = (groups.long() << bit % 64).split(64, -1)
    return torch.stack([each.sum(-1) for each in words], -1)


def unpack(bits: Tensor, groups: int) -> Tensor:
    """What :func:`pack` was given, (..., K) bool."""
    bit = torch.arange(groups, device=bits.device)
    words = bits if bits.shape[-1] == 1 else bits.index_select(-1, bit // 64)
    return (words >> bit % 64) & 1 != 0
