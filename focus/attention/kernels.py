"""Torch's FlashAttention kernel for CPU, with its log-sum-exp.

The forward returns (out, lse) with lse the natural logarithm of the softmax's denominator; the
backward takes the lse and the out to differentiate with, which a caller that merges several calls
sets to the merged ones.

Shape suffixes: B batch, H query heads, Hk key heads, M queries, N keys, D head dimension.
"""

from __future__ import annotations

import torch
from torch import Tensor


def mask_dtype(dtype: torch.dtype) -> torch.dtype:
    """Dtype of an additive mask for the CPU kernel.

    The kernel reads a float32 mask under float64 queries as garbage, without an error.
    """
    return torch.float64 if dtype == torch.float64 else torch.float32


def cpu_forward(
    query: Tensor, key: Tensor, value: Tensor, scale: float, *, causal: bool = False,
    mask: Tensor | None = None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """query (B, H, M, D), key and value (B, Hk, N, D) of any strides -> (B, H, M, D), (B, H, M).

    A row whose mask is -inf throughout has lse 0 here (other kernels: +inf or -inf), so callers
    mark such rows themselves. ``causal`` lets query m see the keys up to m.
    """
    out, lse = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
        query, key, value, 0.0, causal, attn_mask=mask, scale=scale
    )
    return out, lse


def cpu_backward(
    grad: Tensor, query: Tensor, key: Tensor, value: Tensor, out: Tensor, lse: Tensor,
    scale: float, *, causal: bool = False, mask: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Gradients of :func:`cpu_forward` in query, key and value; a row with lse +inf gives none."""
    d_query, d_key, d_value = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward(
        grad, query, key, value, out, lse, 0.0, causal, attn_mask=mask, scale=scale
    )
    return d_query, d_key, d_value
