"""Balancing groups: Sinkhorn's potentials over a sequence.

Potentials u are in the scores' own units: assignments are softmax((scores + u) / temperature), so
that one set of potentials means the same at every temperature.

Shape suffixes: B batch, S sides (those of queries, then the keys'; one where both are the same), Hr
routers a layer (1, or the key heads), T tokens, K groups.
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


def sinkhorn_potentials(scores_BSHrTK: Tensor, temperature: float, iterations: int,
                        real_BT: Tensor | None = None) -> Tensor:  # fmt: skip
    """Potentials (B, S, Hr, K) of Sinkhorn's balanced assignments (paper: Section 2).

    Exp(scores / temperature) is divided by its sum over tokens, then over groups, ``iterations``
    times, in log space. Later tokens move the assignments of earlier ones: not causal. Gradients
    flow through every iteration; on CUDA, where kernels compute them, once.

    Args:
        scores_BSHrTK: scores of tokens and centroids.
        temperature: divisor of the scores.
        iterations: normalisations over tokens, each followed by one over groups.
        real_BT: bool, False for padding, which takes no part; None: all are real. The potentials of
            a sequence of nothing but padding are zero.
    """
    counts_BT = None if real_BT is None else real_BT | empty(real_BT)
    find = _Potentials.apply if kernels_compute(scores_BSHrTK) else _by_torch
    found: Tensor = find(scores_BSHrTK, temperature, iterations, counts_BT)
    return found if real_BT is None else found.masked_fill(empty(real_BT)[:, None, None], 0.0)


def _by_torch(scores: Tensor, temperature: float, iterations: int,
              real: Tensor | None) -> Tensor:  # fmt: skip
    logits = scores / temperature
    padding = None if real is None else ~real[:, None, None, :, None]
    potentials = logits.new_zeros(*logits.shape[:-2], logits.shape[-1])
    share = logits.new_zeros(*logits.shape[:-1], 1)
    for _ in range(iterations):
        counted = logits - share
        # Not in the logits themselves: the gradient of a row that is all -inf is NaN.
        if padding is not None:
            counted = counted.masked_fill(padding, float("-inf"))
        potentials = -torch.logsumexp(counted, -2)
        share = torch.logsumexp(logits + potentials.unsqueeze(-2), -1, keepdim=True)
    # Only differences between groups matter; a zero mean makes potentials of batches comparable.
    return (potentials - potentials.mean(-1, keepdim=True)) * temperature


def empty(real_BT: Tensor) -> Tensor:
    """Which sequences are nothing but padding, (B, 1) bool."""
    return ~real_BT.any(-1, keepdim=True)


def kernels_compute(scores_BSHrTK: Tensor) -> bool:
    """Whether the kernels take scores of this device, dtype and size."""
    scores = scores_BSHrTK
    if torch.compiler.is_compiling() or not scores.is_cuda or scores.dtype != torch.float32:
        return False
    tokens, groups = scores.shape[-2:]
    fits = scores.numel() > 0 and groups <= MOST_GROUPS and tokens * _columns(groups) <= MOST
    able = torch.version.hip is None and installed()
    return fits and able and torch.cuda.get_device_capability(scores.device) >= AMPERE


def _columns(groups: int) -> int:
    return max(2, 1 << (groups - 1).bit_length())


class _Potentials(torch.autograd.Function):
    """On CUDA: two launches in place of some thirty an iteration."""

    @staticmethod
    def forward(ctx: Any, scores: Tensor, temperature: float, iterations: int,
                real: Tensor | None) -> Tensor:  # fmt: skip
        scores = scores.contiguous()
        *outer, _, groups = scores.shape
        levels = scores.new_empty(*outer, iterations, groups)
        found = scores.new_empty(*outer, groups)
        if real is not None:  # a mask may be one for all
            real = real.expand(len(scores), -1).contiguous().view(torch.uint8)
        ctx.save_for_backward(scores, levels, real)
        ctx.temperature = temperature
        _launch("find", scores, real, levels, found, temperature)
        return found

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None]:
        scores, levels, flags = ctx.saved_tensors
        slopes = torch.empty_like(scores)
        _launch("slopes", scores, flags, levels, grad.contiguous(), ctx.temperature, slopes)
        return slopes, None, None, None


def _launch(kernel: str, scores: Tensor, flags: Tensor | None, levels: Tensor, of_groups: Tensor,
            temperature: float, *written: Tensor) -> None:  # fmt: skip
    from focus import sinkhorn_kernels  # Triton is not everywhere

    batch, sides, routers, tokens, groups = scores.shape
    columns, rows = _columns(groups), _columns(tokens)
    with torch.cuda.device_of(scores):
        getattr(sinkhorn_kernels, kernel)[(batch * sides * routers,)](
            scores, scores if flags is None else flags, levels, of_groups, *written, tokens, groups,
            levels.shape[-2], sides * routers, 1 / temperature, temperature,
            PADDED=flags is not None, BLOCK_T=min(rows, ELEMENTS // columns),
            BLOCK_K=columns,
        )  # fmt: skip


def mean_of_texts(found_BSHrK: Tensor, real_BT: Tensor | None) -> Tensor:
    """Mean potentials (S, Hr, K) of a batch, over the sequences that are not padding alone."""
    if real_BT is None:
        return found_BSHrK.mean(0)
    texts = (~empty(real_BT)).sum().clamp(min=1)
    return found_BSHrK.sum(0) / texts  # those of padding alone are zero
