"""Balancing groups: Sinkhorn's potentials over a sequence, and how even groups are.

Potentials u are in the scores' own units: assignments are softmax((scores + u) / temperature), so
that one set of potentials means the same at every temperature.

Shape suffixes: B batch, S sides (those of queries, then the keys'; one where both are the same), Hr
routers a layer (1, or the key heads), T tokens, K groups.
"""

from __future__ import annotations

import torch
from torch import Tensor

from focus import sinkhorn


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
    if sinkhorn.computes(scores_BSHrTK):
        found = sinkhorn.potentials(scores_BSHrTK, temperature, iterations, counts_BT)
        return found if real_BT is None else _cleared(found, real_BT)
    logits = scores_BSHrTK / temperature
    padding = None if counts_BT is None else ~counts_BT[:, None, None, :, None]
    potentials = logits.new_zeros(*logits.shape[:-2], logits.shape[-1])
    share = logits.new_zeros(*logits.shape[:-1], 1)
    for _ in range(iterations):
        counted = logits - share
        # Not in the logits themselves: the gradient of a row that is all -inf is NaN.
        if padding is not None:
            counted = counted.masked_fill(padding, float("-inf"))
        potentials = -torch.logsumexp(counted, -2)
        share = torch.logsumexp(logits + potentials.unsqueeze(-2), -1, keepdim=True)
    if real_BT is not None:
        potentials = _cleared(potentials, real_BT)
    # Only differences between groups matter; a zero mean makes potentials of batches comparable.
    return (potentials - potentials.mean(-1, keepdim=True)) * temperature


def _cleared(potentials_BSHrK: Tensor, real_BT: Tensor) -> Tensor:
    return potentials_BSHrK.masked_fill(empty(real_BT)[:, None, None], 0.0)


def empty(real_BT: Tensor) -> Tensor:
    """Which sequences are nothing but padding, (B, 1) bool."""
    return ~real_BT.any(-1, keepdim=True)


def mean_of_texts(found_BSHrK: Tensor, real_BT: Tensor | None) -> Tensor:
    """Mean potentials (S, Hr, K) of a batch, over the sequences that are not padding alone."""
    if real_BT is None:
        return found_BSHrK.mean(0)
    texts = (~empty(real_BT)).sum().clamp(min=1)
    return found_BSHrK.sum(0) / texts  # those of padding alone are zero


def balance_statistics(membership_BHrTK: Tensor, real_BT: Tensor | None = None) -> dict[str, float]:
    """How evenly tokens spread over groups, averaged over batch and routers.

    Args:
        membership_BHrTK: bool.
        real_BT: bool, False for padding.

    Returns:
        ``largest_group``: share of tokens in the fullest group (balanced top-1: 1/K);
        ``one_plus_cv2``: 1 + squared coefficient of variation of the group sizes, the factor by
        which imbalance raises the cost of the group call.
    """
    if real_BT is not None:
        membership_BHrTK = membership_BHrTK & real_BT[:, None, :, None]
    sizes = membership_BHrTK.sum(-2).cpu().double()  # not every device has float64
    shares = sizes / sizes.sum(-1, keepdim=True)
    groups = membership_BHrTK.shape[-1]
    return {
        "largest_group": float(shares.amax(-1).mean()),
        "one_plus_cv2": float((shares.square().sum(-1) * groups).mean()),
    }
