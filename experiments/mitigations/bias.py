"""DeepSeek-V3's bias (arXiv 2412.19437, Section 2.1.2), without a loss: after every step it goes up
for groups with too few tokens and down for those with too many."""

import torch

from experiments.mitigations.seen import everywhere
from experiments.regimes.joint import Joint

BALANCE = "causal"
SPEED = 0.05  # of a step, as a share of the logits' standard deviation


def install(regime: Joint) -> None:
    """The potentials are the bias."""
    for router in regime.routers:
        router.eval()  # in training mode Sinkhorn would set them
    regime.after_step.append(move)


@torch.no_grad()
def move(regime: Joint, step: int) -> None:
    """One step of the bias."""
    for router in regime.routers:
        groups = router.config.num_groups
        logits = everywhere(regime.seen.logits[router])
        counts = torch.bincount(logits.argmax(-1).flatten(), minlength=groups)
        short = counts.float().mean() - counts
        spread = logits.std() * router.config.temperature
        router.potentials[0, 0] += SPEED * spread * short.sign()
