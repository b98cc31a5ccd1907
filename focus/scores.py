"""Similarity of tokens and centroids.

Shape suffixes: B batch, S sides (those of queries, then the keys'; one where both are the same), Hr
routers a layer (1, or the key heads), T tokens, E model dimension, R routing dimension, K groups.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

WIDEST = 16  # numbers of a processor's vector


class RouterWeights(NamedTuple):
    """A router's parameters.

    projection: (S, Hr, E, R); centroids: (S, Hr, K, R); potentials: (S, Hr, K); cosine: whether
    scores are cosines; made: ``weight`` and ``columns``, where they are kept.
    """

    projection: Tensor
    centroids: Tensor
    potentials: Tensor
    cosine: bool
    made: tuple[Tensor, Tensor] | None = None

    @property
    def weight(self) -> Tensor:
        """(S * Hr * R, E): one product for all."""
        if self.made is not None:
            return self.made[0]
        return self.projection.transpose(2, 3).flatten(0, 2)

    @property
    def columns(self) -> Tensor:
        """Centroids (S, Hr, R, K) as a product takes them, normalised where scores are cosines."""
        if self.made is not None:
            return self.made[1]
        centroids = F.normalize(self.centroids, dim=-1) if self.cosine else self.centroids
        return centroids.transpose(-1, -2).contiguous()

    @property
    def on_cpu(self) -> bool:
        """Whether compiled code reads them as they are."""
        return self.projection.is_cpu

    def kept(self) -> RouterWeights:
        """The same for many steps, without gradients."""
        projection, centroids = self.projection.detach(), self.centroids.detach()
        own = self._replace(projection=projection, centroids=centroids).padded()
        return own if self.on_cpu else own._replace(made=(own.weight, own.columns))

    def padded(self) -> RouterWeights:
        """The same with zeros behind the routing dimensions, which come in vectors on a CPU: no
        score changes."""
        more = -self.projection.shape[3] % WIDEST
        if not (more and self.on_cpu):
            return self
        with torch.no_grad():
            projection, centroids = (F.pad(x, (0, more)) for x in self[:2])
        return self._replace(projection=projection, centroids=centroids)

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
        columns = self.columns.to(dtype)
        routed = routed.unflatten(-1, columns.shape[:3])
        if self.cosine:
            routed = F.normalize(routed, dim=-1)
        return routed.permute(0, 2, 3, 1, 4) @ columns


def normalised(hidden: Tensor) -> Tensor:
    """Hidden states (..., E) at mean zero and variance one."""
    return F.layer_norm(hidden, hidden.shape[-1:])
