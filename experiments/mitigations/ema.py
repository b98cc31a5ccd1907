"""Centroids follow the mean of their tokens, without gradients; the projection learns."""

import torch

from experiments.mitigations import softmax
from experiments.mitigations.seen import everywhere, gathered, means, put
from experiments.regimes.joint import Joint

BALANCE = "softmax"
KEPT = 0.95  # of a centroid, at every step


def install(regime: Joint) -> None:
    """Keeps gradients from the centroids."""
    softmax.install(regime)
    regime.seen.inputs = True
    regime.after_backward.append(still)
    regime.after_step.append(follow)


def still(regime: Joint) -> None:
    """Gradients of zero: the optimiser leaves the centroids where they are."""
    for router in regime.routers:
        if router.centroids.grad is not None:
            router.centroids.grad.zero_()


@torch.no_grad()
def follow(regime: Joint, step: int) -> None:
    """Moves every centroid that has tokens towards their mean."""
    for router in regime.routers:
        points = everywhere(regime.seen.projected(router))
        groups = everywhere(regime.seen.assigned(router)).flatten()
        middle, counts = means(points, groups, router.config.num_groups)
        centroids, there = gathered(router.centroids).clone(), counts > 0
        centroids[0, 0, there] = torch.lerp(middle[there], centroids[0, 0, there], KEPT)
        put(router.centroids, centroids)
