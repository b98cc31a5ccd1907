"""Routing Transformer (arXiv:2003.05997): clusters of queries and keys, by k-means.

There a cluster keeps its nearest tokens of the whole text, and queries are keys. Neither goes with
a pretrained causal model: here a token is in its nearest cluster, as a query and as a key, which
depends on itself alone. Queries and keys are centred on their means over the training windows:
otherwise the clusters tell them apart, and hardly a query meets a key.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import layer_norm, normalize
from transformers import PreTrainedModel

from experiments.methods.base import MOST_GROUPS, Near
from experiments.selection.choosing import Choosing, observed
from experiments.selection.layer import Layer
from experiments.settings.schema import Count


class Clusters(Near):
    """Attributes:
    rounds: of Lloyd's algorithm over the training windows; the paper's run on, as averages.
    """

    rounds: Count = 10


class RoutingTransformer(Choosing):
    """Each query head clusters normed queries and keys of training windows on the unit sphere, in
    as few clusters as keep no more than the budget there."""

    name = "routing_transformer"
    Settings = Clusters

    def __init__(self, settings: Any, seed: int) -> None:
        super().__init__(settings, seed)
        self._layers: list[Layer] = []
        self._centres: dict[int, tuple[Tensor, Tensor]] = {}
        self._centroids: dict[float, dict[int, Tensor]] = {}

    def calibrate(self, model: PreTrainedModel, windows: list[Tensor]) -> None:
        """Queries and keys of training windows."""
        self._layers, self._centroids, self._centres = [], {}, {}
        for layer in observed(model, windows, self.settings):
            own = [normed(x).mean(2) / len(windows) for x in (layer.query, layer.keys)]
            first, second = self._centres.get(layer.index, (0.0, 0.0))
            self._centres[layer.index] = first + own[0], second + own[1]
            self._layers.append(layer)

    def kept(self, layer: Layer, budget: float) -> Tensor:
        """(B, H, M, T) bool."""
        if budget not in self._centroids:
            self._centroids[budget] = self._fitted(budget)
        means = self._centroids[budget][layer.index].to(layer.key.device)
        return same_cluster(layer, *self._points(layer), means)

    def _points(self, layer: Layer) -> tuple[Tensor, Tensor]:
        """Queries and keys of each query head as they are clustered."""
        first, second = (x.unsqueeze(2).to(layer.key.device) for x in self._centres[layer.index])
        return (normalize(normed(layer.query) - first, dim=-1),
                normalize(normed(layer.keys) - second, dim=-1))  # fmt: skip

    def _fitted(self, budget: float) -> dict[int, Tensor]:
        if not self._layers:
            raise ValueError("calibrate: clusters need training windows to be found on")
        for clusters in range(max(2, int(1 / budget) // 2), MOST_GROUPS + 1):
            found = self._means(clusters)
            kept = sum(int((same_cluster(x, *self._points(x), found[x.index]) & x.distant).sum())
                       for x in self._layers)  # fmt: skip
            distant = sum(int(x.distant.sum()) * x.query.shape[1] for x in self._layers)
            if kept <= budget * distant:
                return found
        raise ValueError(f"budget: a share of {budget} takes more than {MOST_GROUPS} clusters")

    def _means(self, clusters: int) -> dict[int, Tensor]:
        """(H, K, D) of each layer."""
        generator = torch.Generator().manual_seed(self.seed)
        means = {}
        for index in sorted({layer.index for layer in self._layers}):
            own = [layer for layer in self._layers if layer.index == index]
            points = torch.cat([x for each in own for x in self._points(each)], 2)[0]
            first = torch.randperm(points.shape[1], generator=generator)[:clusters]
            means[index] = lloyd(points, points[:, first.to(points.device)], self.settings.rounds)
        return means


def normed(x: Tensor) -> Tensor:
    """Layer norm without parameters, then unit length; (..., D) float32."""
    return normalize(layer_norm(x.float(), x.shape[-1:]), dim=-1)


def lloyd(points: Tensor, means: Tensor, rounds: int) -> Tensor:
    """(H, K, D): spherical k-means of points (H, N, D); an empty cluster stays where it is."""
    for _ in range(rounds):
        nearest = torch.nn.functional.one_hot((points @ means.transpose(1, 2)).argmax(-1),
                                              means.shape[1]).float()  # fmt: skip
        sums = nearest.transpose(1, 2) @ points
        means = torch.where(sums.norm(dim=-1, keepdim=True) > 0, normalize(sums, dim=-1), means)
    return means


def same_cluster(layer: Layer, query: Tensor, key: Tensor, means: Tensor) -> Tensor:
    """(B, H, M, T) bool: near pairs, and those of one cluster; query (B, H, M, D), key
    (B, H, T, D), means (H, K, D)."""
    own, keys = ((x @ means.transpose(1, 2)).argmax(-1) for x in (query, key))
    return (own.unsqueeze(-1) == keys.unsqueeze(-2)) & layer.distant | layer.near
