"""Centroids follow the mean of their tokens, without gradients; the projection learns."""

import torch

from experiments.mitigations import softmax
from experiments.regimes.joint import Joint

BALANCE = "softmax"
KEPT = 0.95  # of a centroid, at every step


def install(regime: Joint) -> None:
    """Keeps gradients from the centroids."""
    softmax.install(regime)
    for router in regime.routers:
        router.centroids.register_hook(torch.zeros_like)
    regime.after_step.append(follow)


@torch.no_grad()
def follow(regime: Joint, step: int) -> None:
    """Moves every centroid that has tokens towards their mean."""
    for router in regime.routers:
        means, counts = regime.seen.means(router, regime.seen.assigned(router))
        there = counts > 0
        router.centroids[0, 0, there] = torch.lerp(
            means[there], router.centroids[0, 0, there], KEPT
        )
