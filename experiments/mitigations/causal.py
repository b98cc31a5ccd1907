"""Potentials of earlier batches alone, so that no token sees a later one: what our routers use to
generate, here in training, too."""

import torch

from experiments.mitigations.seen import everywhere
from experiments.regimes.joint import Joint

BALANCE = "causal"
NEW = 0.2  # weight of the last batch


def install(regime: Joint) -> None:
    """Potentials follow what Sinkhorn finds on every batch, after its step."""
    for router in regime.routers:
        router.eval()  # in training mode this balance is Sinkhorn's own
    regime.after_step.append(follow)


@torch.no_grad()
def follow(regime: Joint, step: int) -> None:
    """Takes the batch's potentials in."""
    for router in regime.routers:
        logits = regime.seen.logits[router].detach()
        scores = logits * router.config.temperature - router.potentials.unsqueeze(-2)
        found = everywhere(router.balanced(scores)).mean(0)
        router.potentials.lerp_(found, NEW if step > 1 else 1.0)
