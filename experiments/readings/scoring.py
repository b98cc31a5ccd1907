"""Loss of windows, one at a time, so that no result hangs on the batch.

Shapes: N windows, T tokens.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import PreTrainedModel

from focus.density import PairCounts


@dataclass(frozen=True)
class Score:
    """Summed negative log-likelihood (nats) of the scored tokens, their number, and the pairs that
    were kept."""

    nll: float
    tokens: int
    pairs: PairCounts

    @property
    def row(self) -> dict[str, float | int]:
        """Columns of a table; a pass that masks nothing keeps every pair."""
        counted = self.pairs.causal > 0
        return {
            "nll": self.nll, "tokens": self.tokens,
            "density": self.pairs.density if counted else 1.0,
            "distant_density": self.pairs.distant_density if self.pairs.distant else 1.0,
        }  # fmt: skip


@torch.no_grad()
def token_nll(logits: Tensor, input_ids: Tensor, score_from: int) -> Tensor:
    """Negative log-likelihood (nats, float32) of tokens ``score_from``.. of a window.

    Args:
        logits: (1, T, vocabulary); input_ids: (1, T).
    """
    predicted = logits[0, score_from - 1 : -1].float()
    return torch.nn.functional.cross_entropy(predicted, input_ids[0, score_from:], reduction="none")


@torch.no_grad()
def score(model: PreTrainedModel, windows_NT: Tensor, score_from: int,
          counting: Callable[[], PairCounts]) -> Score:  # fmt: skip
    """Scores a document's windows under whatever the model runs in.

    Args:
        score_from: first scored position of a window.
        counting: gives the pairs that the last forward pass kept.
    """
    nll, tokens, counts = 0.0, 0, []
    for window in windows_NT:
        input_ids = window.unsqueeze(0).to(model.device)
        losses = token_nll(model(input_ids, use_cache=False).logits, input_ids, score_from)
        nll += float(losses.double().sum())
        tokens += losses.numel()
        counts.append(counting())
    return Score(nll, tokens, PairCounts.total(counts))
