"""What is for CUDA, on a CPU: a loop over segments in place of variable-length FlashAttention, and
Triton's routing by its interpreter.

Shape suffixes: N packed rows, H query heads, Hk key heads, D head dimension.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from unittest.mock import patch

import torch
from torch import Tensor

from focus.attention import flash, route
from focus.attention.flash import Segments

ATEN = torch.ops.aten


@contextmanager
def rehearsed() -> Iterator[None]:
    """Has the loop run in the kernels' place."""
    with patch.multiple(flash, forward=forward, backward=backward):
        yield


def forward(query: Tensor, key: Tensor, value: Tensor, segments: Segments, scale: float,
            package: str) -> tuple[Tensor, Tensor]:  # fmt: skip
    """As :func:`focus.attention.flash.forward`, in any dtype."""
    out = torch.empty_like(query)
    lse = query.new_empty(query.shape[1::-1], dtype=torch.promote_types(query.dtype, torch.float32))
    for own in slices(segments):
        q, k, v = (x[own].transpose(0, 1).unsqueeze(0) for x in (query, key, value))
        mask = band(own, segments.window, query.dtype)
        part, part_lse = ATEN._scaled_dot_product_flash_attention_for_cpu(
            q, k, v, 0.0, True, attn_mask=mask, scale=scale
        )
        out[own], lse[:, own] = part[0].transpose(0, 1), part_lse[0]
    return out, lse


def backward(grad: Tensor, query: Tensor, key: Tensor, value: Tensor, out: Tensor, lse: Tensor,
             segments: Segments, scale: float, package: str,
             ) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """As :func:`focus.attention.flash.backward`."""
    totals = torch.empty_like(query), torch.empty_like(key), torch.empty_like(value)
    for own in slices(segments):
        g, q, k, v, o = (
            x[own].transpose(0, 1).unsqueeze(0) for x in (grad, query, key, value, out)
        )
        mask = band(own, segments.window, query.dtype)
        parts = ATEN._scaled_dot_product_flash_attention_for_cpu_backward(
            g, q, k, v, o, lse[None, :, own], 0.0, True, attn_mask=mask, scale=scale
        )
        for total, part in zip(totals, parts, strict=True):
            total[own] = part[0].transpose(0, 1)
    return totals


def slices(segments: Segments) -> list[slice]:
    return [slice(a, b) for a, b in pairwise(segments.offsets.tolist()) if b > a]


def band(own: slice, window: int | None, dtype: torch.dtype) -> Tensor | None:
    if window is None:
        return None
    row = torch.arange(own.stop - own.start)
    # Under float64 queries the kernel reads a float32 mask as garbage, without an error.
    wide = torch.promote_types(dtype, torch.float32)
    mask = torch.zeros(len(row), len(row), dtype=wide)
    return mask.masked_fill_(row[:, None] - row >= window, -torch.inf)


@contextmanager
def routed_by_triton() -> Iterator[None]:
    """Has Triton's kernel route in place of the compiled call for CPU."""
    with patch.object(route, "on_cpu", route.on_cuda):
        yield
