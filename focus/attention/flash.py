"""Variable-length FlashAttention: segments laid end to end, causal within each, maybe windowed.

On CUDA alone, by torch's own operators or the flash-attn package (tests rehearse what is built on
them with a loop on CPU: ``tests/attention/rehearsal.py``). A backward pass takes the out and lse to
differentiate with: a caller that merges several calls sets them to the merged ones (no kernel
differentiates its log-sum-exp).

Shape suffixes: N packed rows, H query heads, Hk key heads, D head dimension, S segments.
"""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass

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
        query, key, value: half precision, of one head dimension, a multiple of 8, <= 256.
        package: ``varlen`` (torch's operators) or ``flash-attn``.
    """
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
