"""Variable-length FlashAttention: segments laid end to end, causal within each, maybe windowed.

By torch's own operators on CUDA, by the flash-attn package where the user asks for it, and by a
loop over segments on CPU, which rehearses what is built on them. Each backward takes the out and
lse to differentiate with: a caller that merges several calls sets them to the merged ones (no
kernel differentiates its log-sum-exp).

Shape suffixes: N packed rows, H query heads, Hk key heads, D head dimension, S segments; in the
loop B batch, M queries, N keys.
"""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

MOST_DIM = 256


@dataclass(frozen=True)
class Segments:
    """Segment s holds rows ``offsets[s]:offsets[s + 1]``.

    offsets: (S + 1,) int32 on the tensors' device; longest: no segment has more rows (an upper
    bound, so that nobody need ask the device); window: rows that a query sees, its own among them,
    None: all before it.
    """

    offsets: Tensor
    longest: int
    window: int | None = None

    @property
    def sides(self) -> tuple[int, int]:
        """Rows seen to the left and right beside the query's own; -1: any number."""
        return (-1 if self.window is None else self.window - 1), 0


def forward(query: Tensor, key: Tensor, value: Tensor, segments: Segments, scale: float,
            package: str) -> tuple[Tensor, Tensor]:  # fmt: skip
    """(N, H, D) over (N, Hk, D) -> out (N, H, D), lse (H, N).

    Args:
        query, key, value: one head dimension; on CUDA half precision, D a multiple of 8, <= 256.
        package: ``varlen`` (torch's operators) or ``flash-attn``.
    """
    if not query.is_cuda:
        return _loop_forward(query, key, value, segments, scale)
    at, longest, (left, right) = segments.offsets, segments.longest, segments.sides
    both = at, at, longest, longest
    causal = segments.window is None
    if package == "flash-attn":
        from flash_attn.flash_attn_interface import _flash_attn_varlen_forward

        out, lse, *_ = _flash_attn_varlen_forward(
            query, key, value, *both, 0.0, scale, causal, window_size_left=left,
            window_size_right=right,
        )  # fmt: skip
    else:
        out, lse, *_ = torch.ops.aten._flash_attention_forward(
            query, key, value, *both, 0.0, causal, False, scale=scale, window_size_left=left,
            window_size_right=right,
        )  # fmt: skip
    if lse.shape != (query.shape[1], query.shape[0]):
        raise RuntimeError(
            f"the log-sum-exp has shape {tuple(lse.shape)}, not (heads, rows): {package} is too "
            "old here (torch 2.11 or flash-attn 2.8 is needed); use backend='stripes'"
        )
    return out, lse


def backward(grad: Tensor, query: Tensor, key: Tensor, value: Tensor, out: Tensor, lse: Tensor,
             segments: Segments, scale: float, package: str,
             ) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Gradients of :func:`forward` under the given out and lse; a row with lse +inf gives none."""
    if not query.is_cuda:
        return _loop_backward(grad, query, key, value, out, lse, segments, scale)
    at, longest, (left, right) = segments.offsets, segments.longest, segments.sides
    both = at, at, longest, longest
    causal, lse = segments.window is None, lse.contiguous()
    if package == "flash-attn":
        from flash_attn.flash_attn_interface import _flash_attn_varlen_backward

        grads = torch.empty_like(query), torch.empty_like(key), torch.empty_like(value)
        _flash_attn_varlen_backward(
            grad, query, key, value, out, lse, *grads, *both, 0.0, scale, causal, left, right, 0.0,
            None, torch.are_deterministic_algorithms_enabled(),
        )  # fmt: skip
        return grads
    # Without dropout the kernel asks for no random state, only for tensors in its place.
    seed, offset = query.new_zeros(2, dtype=torch.uint64), query.new_empty(0)
    d_query, d_key, d_value = torch.ops.aten._flash_attention_backward(
        grad, query, key, value, out, lse, *both, 0.0, causal, seed, offset, scale=scale,
        window_size_left=left, window_size_right=right,
    )  # fmt: skip
    return d_query, d_key, d_value


def installed() -> bool:
    """Whether the flash-attn package is."""
    return importlib.util.find_spec("flash_attn") is not None


def _loop_forward(query: Tensor, key: Tensor, value: Tensor, segments: Segments,
                  scale: float) -> tuple[Tensor, Tensor]:  # fmt: skip
    out = torch.empty_like(query)
    lse = query.new_empty(query.shape[1::-1], dtype=torch.promote_types(query.dtype, torch.float32))
    for own in _slices(segments):
        q, k, v = (x[own].transpose(0, 1).unsqueeze(0) for x in (query, key, value))
        mask = _band(own, segments.window, query.dtype)
        part, part_lse = _cpu_forward(q, k, v, scale, causal=True, mask=mask)
        out[own], lse[:, own] = part[0].transpose(0, 1), part_lse[0]
    return out, lse


def _loop_backward(grad: Tensor, query: Tensor, key: Tensor, value: Tensor, out: Tensor,
                   lse: Tensor, segments: Segments, scale: float,
                   ) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    totals = torch.empty_like(query), torch.empty_like(key), torch.empty_like(value)
    for own in _slices(segments):
        g, q, k, v, o = (
            x[own].transpose(0, 1).unsqueeze(0) for x in (grad, query, key, value, out)
        )
        mask = _band(own, segments.window, query.dtype)
        parts = _cpu_backward(g, q, k, v, o, lse[None, :, own], scale, causal=True, mask=mask)
        for total, part in zip(totals, parts, strict=True):
            total[own] = part[0].transpose(0, 1)
    return totals


def _slices(segments: Segments) -> list[slice]:
    return [slice(a, b) for a, b in pairwise(segments.offsets.tolist()) if b > a]


def _band(own: slice, window: int | None, dtype: torch.dtype) -> Tensor | None:
    if window is None:
        return None
    row = torch.arange(own.stop - own.start, device="cpu")
    mask = torch.zeros(len(row), len(row), dtype=_mask_dtype(dtype), device="cpu")
    return mask.masked_fill_(row[:, None] - row >= window, -torch.inf)


def _mask_dtype(dtype: torch.dtype) -> torch.dtype:
    """Dtype of an additive mask for the CPU kernel.

    The kernel reads a float32 mask under float64 queries as garbage, without an error.
    """
    return torch.float64 if dtype == torch.float64 else torch.float32


def _cpu_forward(
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


def _cpu_backward(
    grad: Tensor, query: Tensor, key: Tensor, value: Tensor, out: Tensor, lse: Tensor,
    scale: float, *, causal: bool = False, mask: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Gradients of :func:`_cpu_forward` in query, key and value; a row with lse +inf gives none."""
    d_query, d_key, d_value = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward(
        grad, query, key, value, out, lse, 0.0, causal, attn_mask=mask, scale=scale
    )
    return d_query, d_key, d_value
