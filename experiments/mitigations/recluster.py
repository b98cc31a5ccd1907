"""Centroids are found anew by k-means, now and then."""

import torch

from experiments.mitigations import softmax
from experiments.mitigations.seen import everywhere, gathered, means, put
from experiments.regimes.joint import Joint

BALANCE = "softmax"
EVERY, TIMES = 100, 6  # steps, as in the paper; a short training has it six times
ROUNDS = 5  # of Lloyd's, from the centroids as they are


def install(regime: Joint) -> None:
    """Adds the losses and the clustering."""
    softmax.install(regime)
    regime.seen.inputs = True
    regime.after_step.append(cluster)


@torch.no_grad()
def cluster(regime: Joint, step: int) -> None:
    """K-means of the last batch's projected tokens; a group that has none takes the token that is
    farthest from its centroid."""
    if step % min(EVERY, max(1, regime.settings.steps // TIMES)):
        return
    for router in regime.routers:
        points = everywhere(regime.seen.projected(router))
        centroids = gathered(router.centroids)[0, 0]
        for _ in range(ROUNDS):
            distances = torch.cdist(points, centroids)
            nearest = distances.min(-1)
            middle, counts = means(points, nearest.indices, len(centroids))
            empty = counts == 0
            far = nearest.values.topk(int(empty.sum())).indices
            centroids = torch.where(empty[:, None], centroids, middle)
            centroids[empty] = points[far]
        put(router.centroids, centroids[None, None])
