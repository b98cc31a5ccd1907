"""Loss of each document: under the method at every budget, under its training gate, or, of full
attention, as it is. Windows are passed one at a time, so that no result hangs on the batch.

Shapes: N windows, T tokens.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from transformers import PreTrainedModel

from experiments.readings.subject import Condition, Rows, Subject
from experiments.settings import Perplexity
from focus.density import PairCounts

AXES = ("texts", "conditions")


def rows(subject: Subject, reading: Perplexity, name: str, how: Condition) -> Rows:
    """A row a document."""
    found = []
    with subject.entered(how) as counting:
        for which, windows in subject.documents(name):
            own = score(subject.model, windows, reading.score_from, counting)
            found.append(subject.row(how, **which, **own))
    return found


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
          counting: Callable[[], PairCounts]) -> dict[str, float | int]:  # fmt: skip
    """Columns of a document's windows under whatever the model runs in: nats of the scored tokens,
    their number, and the shares of pairs that were kept; what masks nothing keeps all.

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
    pairs = PairCounts.total(counts)
    return {"nll": nll, "tokens": tokens,
            "density": pairs.density if pairs.causal else 1.0,
            "distant_density": pairs.distant_density if pairs.distant else 1.0}  # fmt: skip
