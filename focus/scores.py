"""Similarity of tokens and centroids.

Shape suffixes: B batch, S sides (those of queries, then the keys'; one where both are the same), Hr
routers a layer (1, or the key heads), T tokens, E model dimension, R routing dimension, K groups.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor


class Prepared(NamedTuple):
    """A router's parameters as scores are computed from them, contiguous.

    projection: (S, Hr, E, R); centroids: (S, Hr, R, K), normalised where scores are cosines;
    potentials: (S, Hr, K); cosine: whether they are; flat: ``weight``, where it is kept.
    """

    projection: Tensor
    centroids: Tensor
    potentials: Tensor
    cosine: bool
    flat: Tensor | None = None

    @property
    def weight(self) -> Tensor:
        """(S * Hr * R, E): one product for all."""
        if self.flat is not None:
            return self.flat
        return self.projection.transpose(2, 3).flatten(0, 2)

    def scores(self, hidden_BTE: Tensor) -> Tensor:
        """(B, S, Hr, T, K), float32 or wider.

        Of the layer-normed hidden state's projection and the centroid, the cosine; without
        ``cosine`` the paper's (hidden @ projection) @ centroids^T.
        """
        dtype = torch.promote_types(hidden_BTE.dtype, torch.float32)
        hidden = hidden_BTE.to(dtype)
        if self.cosine:
            hidden = normalised(hidden)
        routed = F.linear(hidden, self.weight.to(dtype))
        routed = routed.unflatten(-1, self.centroids.shape[:3])
        if self.cosine:
            routed = F.normalize(routed, dim=-1)
        return routed.permute(0, 2, 3, 1, 4) @ self.centroids.to(dtype)


def normalised(hidden: Tensor) -> Tensor:
    """Hidden states (..., E) at mean zero and variance one."""
    return F.layer_norm(hidden, hidden.shape[-1:])
