"""Balancing groups: Sinkhorn's potentials over a sequence, and how even groups are.

Potentials u are in the scores' own units: assignments are softmax((scores + u) / temperature), so
that one set of potentials means the same at every temperature.

Shape suffixes: B batch, S sides (those of queries, then the keys'; one where both are the same), Hr
routers a layer (1, or the key heads), T tokens, K groups.
"""

from __future__ import annotations

import torch
from torch import Tensor


def sinkhorn_potentials(scores_BSHrTK: Tensor, temperature: float, iterations: int,
                        real_BT: Tensor | None = None) -> Tensor:  # fmt: skip
    """Potentials (B, S, Hr, K) of Sinkhorn's balanced assignments (paper: Section 2).

    Exp(scores / temperature) is divided by its sum over tokens, then over groups, ``iterations``
    times, in log space. Later tokens move the assignments of earlier ones: not causal. Gradients
    flow through every iteration.

    Args:
        scores_BSHrTK: scores of tokens and centroids.
        temperature: divisor of the scores.
        iterations: normalisations over tokens, each followed by one over groups.
        real_BT: bool, False for padding, which takes no part; None: all are real.
    """
    logits = scores_BSHrTK / temperature
    if real_BT is not None:
        logits = logits.masked_fill(~real_BT[:, None, None, :, None], float("-inf"))
    potentials = logits.new_zeros(*logits.shape[:-2], logits.shape[-1])
    share = logits.new_zeros(*logits.shape[:-1], 1)
    for _ in range(iterations):
        potentials = -torch.logsumexp(logits - share, -2)
        share = _row_normaliser(logits + potentials.unsqueeze(-2))
    # Only differences between groups matter; a zero mean makes potentials of batches comparable.
    return (potentials - potentials.mean(-1, keepdim=True)) * temperature


def _row_normaliser(logits: Tensor) -> Tensor:
    # A padding row is all -inf, and its log-sum-exp must not turn -inf - -inf into NaN.
    norm = torch.logsumexp(logits, -1, keepdim=True)
    return norm.masked_fill(torch.isneginf(norm), 0.0)


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
    weight = membership_BHrTK.double()
    if real_BT is not None:
        weight = weight * real_BT[:, None, :, None]
    sizes = weight.sum(-2)
    shares = sizes / sizes.sum(-1, keepdim=True)
    groups = membership_BHrTK.shape[-1]
    return {
        "largest_group": float(shares.amax(-1).mean()),
        "one_plus_cv2": float((shares.square().sum(-1) * groups).mean()),
    }
