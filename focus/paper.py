"""The paper's gate (arXiv 2604.03260) by its definition. On CUDA in half precision a kernel does it
(:mod:`focus.attention.triton.gated`).

Shape suffixes: C queries of a block, N their keys; what stands before them is broadcast.
"""

from __future__ import annotations

import torch
from torch import Tensor

EQ2_STEEPNESS = 8.0  # lambda of Eq. 2


def eq2_scores(logits_CN: Tensor, affinity_CN: Tensor) -> Tensor:
    """Eq. 2: a distant pair's logit times sigmoid(lambda * affinity).

    At affinity 0 this halves the logit and never removes the pair.
    """
    return logits_CN * torch.sigmoid(EQ2_STEEPNESS * affinity_CN)


def eq2_gradients(logits_CN: Tensor, affinity_CN: Tensor, d_scores_CN: Tensor
                  ) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Gradients of :func:`eq2_scores` in the logits and in the affinity."""
    factor = torch.sigmoid(EQ2_STEEPNESS * affinity_CN)
    slope = EQ2_STEEPNESS * factor * (1 - factor)
    return d_scores_CN * factor, d_scores_CN * logits_CN * slope
