"""The losses that mitigations without a balance rest on.

Shapes: T tokens, K groups.
"""

from __future__ import annotations

import torch
from torch import Tensor

from experiments.mitigations.seen import Seen, everywhere
from experiments.regimes.base import Auxiliary

ENTROPY, BALANCE = 0.01, 0.01  # weights; the paper gives none, Switch Transformer takes 0.01


def losses(seen: Seen, entropy: float = ENTROPY, balance: float = BALANCE) -> Auxiliary:
    """Mean entropy of a token's assignment, so that it decides, and Switch Transformer's loss of
    balance, K * sum of (share of tokens * mean probability), which is 1 at best; means over
    routers."""

    def added(regime: object, batch: dict[str, Tensor]) -> Tensor:
        terms = [entropy * each[0] + balance * each[1]
                 for each in map(parts, seen.logits.values())]  # fmt: skip
        return torch.stack(terms).mean()

    return added


def parts(logits: Tensor) -> tuple[Tensor, Tensor]:
    """Entropy, nats, and balance of logits (..., T, K). Shares are those of all processes' tokens:
    then the mean of the processes' losses is the loss of all their tokens."""
    flat = logits.flatten(0, -2)
    probability = flat.softmax(-1)
    entropy = -(probability * flat.log_softmax(-1)).sum(-1).mean()
    groups = flat.shape[-1]
    own = torch.nn.functional.one_hot(flat.argmax(-1), groups).to(flat.dtype).mean(0)
    share = everywhere(own[None]).mean(0)
    return entropy, groups * (share * probability.mean(0)).sum()
