"""Sinkhorn's potentials on CUDA: two launches in place of some thirty an iteration.

Shape suffixes: B batch, S sides, Hr routers a layer, T tokens, K groups.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from focus.attention.triton.call import MOST_GROUPS, installed

# One program goes through all tokens: beyond so many scores torch's launches take less (measured on
# an H100 with 18 groups, in 32 columns: 0.6 ms in place of 5 at 256 tokens, 1.7 at 1,024, 7.9 at
# 4,096).
MOST = 2048 * 32
ELEMENTS = 4096  # of a block
AMPERE = 8, 0  # older cards were never tried


def computes(scores: Tensor) -> bool:
    """Whether the kernels take scores (B, S, Hr, T, K) of this device, dtype and size."""
    if torch.compiler.is_compiling() or not scores.is_cuda or scores.dtype != torch.float32:
        return False
    tokens, groups = scores.shape[-2:]
    fits = scores.numel() > 0 and groups <= MOST_GROUPS and tokens * _columns(groups) <= MOST
    able = torch.version.hip is None and installed()
    return fits and able and torch.cuda.get_device_capability(scores.device) >= AMPERE


def _columns(groups: int) -> int:
    return max(2, 1 << (groups - 1).bit_length())


def potentials(scores: Tensor, temperature: float, iterations: int,
               real: Tensor | None) -> Tensor:  # fmt: skip
    """Potentials (B, S, Hr, K), float32, of :func:`focus.balance.sinkhorn_potentials`. Gradients
    are plain: they cannot be differentiated again, nor by torch.func.

    Args:
        scores: (B, S, Hr, T, K) float32, such as :func:`computes` allows.
        temperature: divisor of the scores.
        iterations: at least 1.
        real: (B, T) or (1, T) bool, no row without any; None: all are real.
    """
    if real is not None:
        real = real.expand(len(scores), -1)
    found: Tensor = _Potentials.apply(scores, temperature, iterations, real)
    return found


class _Potentials(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, scores: Tensor, temperature: float, iterations: int,
                real: Tensor | None) -> Tensor:  # fmt: skip
        from focus import sinkhorn_kernels as kernels

        scores = scores.contiguous()
        *outer, _, groups = scores.shape
        levels = scores.new_empty(*outer, iterations, groups)
        found = scores.new_empty(*outer, groups)
        flags = None if real is None else real.contiguous().view(torch.uint8)
        ctx.save_for_backward(scores, levels, flags)
        ctx.temperature = temperature
        _launch(kernels.find, scores, flags, levels, found, temperature)
        return found

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None]:
        from focus import sinkhorn_kernels as kernels

        scores, levels, flags = ctx.saved_tensors
        slopes = torch.empty_like(scores)
        _launch(kernels.slopes, scores, flags, levels, grad.contiguous(), ctx.temperature, slopes)
        return slopes, None, None, None


def _launch(kernel: Any, scores: Tensor, flags: Tensor | None, levels: Tensor, of_groups: Tensor,
            temperature: float, *written: Tensor) -> None:  # fmt: skip
    batch, sides, routers, tokens, groups = scores.shape
    columns, rows = _columns(groups), _columns(tokens)
    with torch.cuda.device_of(scores):
        kernel[(batch * sides * routers,)](
            scores, scores if flags is None else flags, levels, of_groups, *written, tokens, groups,
            levels.shape[-2], sides * routers, 1 / temperature, temperature,
            PADDED=flags is not None, BLOCK_T=min(rows, ELEMENTS // columns),
            BLOCK_K=columns,
        )  # fmt: skip
