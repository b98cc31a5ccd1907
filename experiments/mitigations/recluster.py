"""Centroids are found anew by k-means, now and then."""

import torch

from experiments.mitigations import softmax
from experiments.regimes.joint import Joint

BALANCE = "softmax"
TIMES = 6  # in a training; the paper's is every 100 of its steps
ROUNDS = 5  # of Lloyd's, from the centroids as they are


def install(regime: Joint) -> None:
    """Adds the losses and the clustering."""
    softmax.install(regime)
    regime.after_step.append(cluster)


@torch.no_grad()
def cluster(regime: Joint, step: int) -> None:
    """K-means of the last batch's projected tokens; a group that has none takes the token that is
    farthest from its centroid."""
    if step % max(1, regime.settings.steps // TIMES):
        return
    for router in regime.routers:
        points = regime.seen.projected(router)
        centroids = router.centroids[0, 0].clone()
        for _ in range(ROUNDS):
            distances = torch.cdist(points, centroids)
            nearest = distances.min(-1)
            means, counts = regime.seen.means(router, nearest.indices)
            empty = counts == 0
            far = nearest.values.topk(int(empty.sum())).indices
            centroids = torch.where(empty[:, None], centroids, means)
            centroids[empty] = points[far]
        router.centroids[0, 0] = centroids
