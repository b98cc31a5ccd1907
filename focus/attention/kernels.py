"""FlashAttention kernels behind two signatures: strided blocks (CPU) and packed segments (CUDA).

Nothing here knows of groups. Every forward returns (out, lse) with lse the natural logarithm of the
softmax's denominator; every backward takes the lse and the out to differentiate with, which a
caller that merges several calls sets to the merged ones.

On CUDA these are torch's own FlashAttention operators (half precision). FlashAttention 3 or 4,
where installed, takes their place after
``torch.nn.attention.activate_flash_attention_impl("FA3")``.

Shape suffixes: B batch, H query heads, Hk key heads, M queries, N keys or packed rows, D head
dimension, S segments.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

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


# ------------------------------------------------------------------- packed segments (CUDA)


@dataclass(frozen=True)
class Segments:
    """Sequences laid end to end: segment s holds rows ``offsets[s]:offsets[s + 1]``.

    offsets: (S + 1,) int32 on the tensors' device; longest: rows of the longest segment.
    """

    offsets: Tensor
    longest: int

    @classmethod
    def of(cls, offsets: list[int], device: torch.device) -> Segments:
        """Segments from boundaries; empty ones are left out, as kernels disagree about them."""
        ends = [offsets[0], *(b for a, b in pairwise(offsets) if b > a)]
        longest = max((b - a for a, b in pairwise(ends)), default=0)
        return cls(torch.tensor(ends, dtype=torch.int32, device=device), longest)


Context = tuple[Tensor, ...]  # what a kernel's backward wants back beside out and lse


def packed_forward(
    query: Tensor, key: Tensor, value: Tensor, segments: Segments, scale: float,
    window: int | None = None,
) -> tuple[Tensor, Tensor, Context]:  # fmt: skip
    """Causal attention within each segment, (N, H, D) over (N, Hk, D) -> (N, H, D), (H, N).

    Args:
        query, key, value: one head dimension; on CUDA half precision, D a multiple of 8, <= 256.
        window: rows that a query sees, its own among them; None: all before it.

    Returns:
        out, lse and what :func:`packed_backward` needs of the kernel's own.
    """
    if not query.is_cuda:
        return _loop_forward(query, key, value, segments, scale, window)
    left, right = (None, None) if window is None else (window - 1, 0)
    out, lse, *rest = torch.ops.aten._flash_attention_forward(
        query, key, value, segments.offsets, segments.offsets, segments.longest, segments.longest,
        0.0, window is None, False, scale=scale, window_size_left=left, window_size_right=right,
    )  # fmt: skip
    if lse.shape != (query.shape[1], query.shape[0]):
        raise RuntimeError(
            f"this torch ({torch.__version__}) returns a log-sum-exp of shape {tuple(lse.shape)}, "
            "not (heads, rows); torch 2.11 or later is needed"
        )
    return out, lse, tuple(rest[:2])


def packed_backward(
    grad: Tensor, query: Tensor, key: Tensor, value: Tensor, out: Tensor, lse: Tensor,
    context: Context, segments: Segments, scale: float, window: int | None = None,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Gradients of :func:`packed_forward` under the given out and lse (the merged ones)."""
    if not query.is_cuda:
        return _loop_backward(grad, query, key, value, out, lse, segments, scale, window)
    left, right = (None, None) if window is None else (window - 1, 0)
    d_query, d_key, d_value = torch.ops.aten._flash_attention_backward(
        grad, query, key, value, out, lse.contiguous(), segments.offsets, segments.offsets,
        segments.longest, segments.longest, 0.0, window is None, *context, scale=scale,
        window_size_left=left, window_size_right=right,
    )  # fmt: skip
    return d_query, d_key, d_value


def _loop_forward(
    query: Tensor, key: Tensor, value: Tensor, segments: Segments, scale: float, window: int | None
) -> tuple[Tensor, Tensor, Context]:
    """The same on CPU, a segment at a time: by it the packed path is tested without a GPU."""
    out, lse = torch.empty_like(query), query.new_empty(query.shape[1::-1])
    lse = lse.to(torch.promote_types(query.dtype, torch.float32))
    for own in _slices(segments):
        q, k, v = (x[own].transpose(0, 1).unsqueeze(0) for x in (query, key, value))
        mask = _band(own, window, query.dtype)
        part, part_lse = cpu_forward(q, k, v, scale, causal=True, mask=mask)
        out[own], lse[:, own] = part[0].transpose(0, 1), part_lse[0]
    return out, lse, ()


def _loop_backward(
    grad: Tensor, query: Tensor, key: Tensor, value: Tensor, out: Tensor, lse: Tensor,
    segments: Segments, scale: float, window: int | None,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    totals = torch.empty_like(query), torch.empty_like(key), torch.empty_like(value)
    for own in _slices(segments):
        g, q, k, v, o = (
            x[own].transpose(0, 1).unsqueeze(0) for x in (grad, query, key, value, out)
        )
        mask = _band(own, window, query.dtype)
        parts = cpu_backward(g, q, k, v, o, lse[None, :, own], scale, causal=True, mask=mask)
        for total, part in zip(totals, parts, strict=True):
            total[own] = part[0].transpose(0, 1)
    return totals


def _slices(segments: Segments) -> list[slice]:
    return [slice(a, b) for a, b in pairwise(segments.offsets.tolist())]


def _band(own: slice, window: int | None, dtype: torch.dtype) -> Tensor | None:
    if window is None:
        return None
    row = torch.arange(own.stop - own.start)
    mask = torch.zeros(len(row), len(row), dtype=mask_dtype(dtype))
    return mask.masked_fill_(row[:, None] - row >= window, -torch.inf)
