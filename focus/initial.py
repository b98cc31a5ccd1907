"""Routers that start from text instead of at random: from the model's own attention, or from
clusters of its hidden states.

A distant logit q_i . k_j, averaged over the distances between them, is a bilinear form of the two
hidden states. Its best approximation of rank R on real text (a singular value decomposition in
whitened coordinates) gives the projections of queries and keys; clusters of the keys in that space
(k-means) give the centroids. What it needs is seen at the attention call, so rotary and learned
positions, biases, grouped keys and normalised queries are all taken as they are.

Clusters of hidden states (``space="hidden"``) are what one starts centroids from where nothing is
known of queries and keys: the projection is the keys' random one, blind to what all tokens share;
queries take it too, so that a token looks for its like.

Shape suffixes: N tokens of a half sequence, E model dimension, H query heads, Hk key heads, Hr
routers, D head dimension, R routing dimension, K groups.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal, get_args

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import PreTrainedModel

from focus.modes import mode
from focus.routing import Router
from focus.state import attached

Space = Literal["attention", "hidden"]

SAMPLE = 4096  # hidden states of a layer that are kept for clustering
RIDGE = 1e-6  # of the largest variance: directions below it hold rounding, no text
ITERATIONS = 15  # of k-means; assignments have settled by then


@torch.no_grad()
def initialise(model: PreTrainedModel, batches: Iterable[Tensor], seed: int | None = None,
               space: Space = "attention") -> PreTrainedModel:  # fmt: skip
    """Sets every router's projections, centroids and frozen potentials from a little text.

    Args:
        model: attached, with routers that score by cosine (all but ``paper``).
        batches: input_ids (B, T) without padding, T at least two; a few thousand tokens in all,
            at the length that is to be attended.
        seed: of k-means' first centroids; None uses torch's global generator.
        space: where k-means runs: ``attention``, the directions in which the model's own distant
            logits vary most; ``hidden``, hidden states through the keys' random projection.

    Returns:
        The same model.

    Raises:
        ValueError: an unknown space, Focus is not attached, the routers are ``paper`` (whose scale
            no text gives), or the batches hold fewer tokens than there are groups.
    """
    if space not in get_args(Space):
        raise ValueError(f"space: must be one of {', '.join(get_args(Space))}, got {space!r}")
    state = attached(model)
    if state.config.routers == "paper":
        raise ValueError("routers: the paper's raw dot product cannot start from text, which gives "
                         "it no scale; use another kind")  # fmt: skip
    moments = {index: Moments() for index in state.routers}
    tokens = 0
    for input_ids in batches:
        if input_ids.shape[1] < 2:
            raise ValueError("batches: a sequence of one token has no distant pair; give longer")
        tokens += input_ids.numel()
        # A window as long as the text: the model's own attention, through our function.
        with mode(model, "hard", window=input_ids.shape[1], sinks=0, balance="softmax", ngram=0,
                  tap=lambda index, *seen: moments[index].add(*seen)):  # fmt: skip
            model(input_ids=input_ids.to(model.device), use_cache=False)
    if tokens < 2 * state.config.num_groups:
        raise ValueError(
            f"batches: {tokens} tokens are too few for {state.config.num_groups} groups; give more"
        )
    generator = None if seed is None else torch.Generator().manual_seed(seed)
    find = from_attention if space == "attention" else from_hidden
    for index, router in state.routers.items():
        set_router(router, moments[index], find(router, moments[index]), generator)
    return model


class Moments:
    """Sums over text of one layer: how queries late in a text and keys early in it follow from
    hidden states."""

    def __init__(self) -> None:
        self.tokens = 0
        self.total: Tensor | float = 0.0  # (E,)
        self.covariance: Tensor | float = 0.0  # (E, E)
        self.queries: Tensor | float = 0.0  # (Hk, E, D), query heads of a key head together
        self.keys: Tensor | float = 0.0  # (Hk, E, D)
        self.sample: list[Tensor] = []

    def add(self, hidden_BTE: Tensor, query: Tensor, key: Tensor) -> None:
        """Adds sequences: query (B, H, T, D), key (B, Hk, T, D)."""
        x_BTE = F.layer_norm(hidden_BTE.float(), hidden_BTE.shape[-1:])
        missing = SAMPLE - sum(len(part) for part in self.sample)
        flat = x_BTE.flatten(0, 1)
        self.sample.append(flat[:: max(1, -(-len(flat) // max(1, missing)))][: max(0, missing)])
        self.total = self.total + flat.sum(0)
        self.tokens += len(flat)
        middle = x_BTE.shape[1] // 2
        centred = x_BTE - x_BTE.mean(1, keepdim=True)
        self.covariance = self.covariance + centred.flatten(0, 1).T @ centred.flatten(0, 1)
        # Heads that share a key add their logits: (sum of queries) . key.
        together = query.float().unflatten(1, (key.shape[1], -1)).sum(2)
        late, early = centred[:, middle:], centred[:, :middle]
        self.queries = self.queries + torch.einsum("bte,bhtd->hed", late, together[:, :, middle:])
        # A constant of all keys moves no softmax.
        keys = key.float() - key.float().mean(2, keepdim=True)
        self.keys = self.keys + torch.einsum("bte,bhtd->hed", early, keys[:, :, :middle])


def set_router(router: Router, moments: Moments, projections: list[list[Tensor]],
               generator: torch.Generator | None) -> None:  # fmt: skip
    """Sets one router's parameters and frozen potentials: ``projections[r][side]`` is (E, R);
    centroids come from a layer's sample through the last side's, which is the keys': centroids are
    where keys are, and queries look for them."""
    sample = torch.cat(moments.sample)
    for r, sides in enumerate(projections):
        for side, projection in enumerate(sides):
            router.projection[side, r] = _like_random(projection)
        routed = F.normalize(sample @ router.projection[-1, r], dim=-1)
        router.centroids[:, r] = cluster(routed, router.centroids.shape[-2], generator)
    router.potentials.copy_(router.balanced(router.scores(sample.unsqueeze(0)))[0])
    router.batches.fill_(1)


def from_attention(router: Router, moments: Moments) -> list[list[Tensor]]:
    """Projections (E, R), by router and side, that hold most of a layer's distant logits."""
    mean, covariance = torch.as_tensor(moments.total) / moments.tokens, moments.covariance
    values, vectors = torch.linalg.eigh(torch.as_tensor(covariance) / moments.tokens)
    whiten = vectors * values.clamp_min(values.amax() * RIDGE).rsqrt() @ vectors.T
    late, early = (whiten @ torch.as_tensor(x) for x in (moments.queries, moments.keys))
    if router.projection.shape[1] == 1:  # one router for all key heads: their logits add up
        late, early = (x.transpose(0, 1).flatten(1).unsqueeze(0) for x in (late, early))
    projections = []
    for r in range(router.projection.shape[1]):
        found = _sides(late[r], early[r], router)
        # Query heads that share a key head start as one: from the sum of their queries.
        found = [found[0]] * (len(router.projection) - 1) + found[-1:]
        # Both whitened, so that what differs between tokens changes least.
        projections.append([whiten @ _without(whiten @ mean, side) for side in found])
    return projections


def from_hidden(router: Router, moments: Moments) -> list[list[Tensor]]:
    """The keys' projection (E, R) of each router, blind to the mean hidden state, for every side
    of it."""
    mean = torch.as_tensor(moments.total) / moments.tokens
    drawn = [_without(mean, keys) for keys in router.projection[-1]]
    return [[keys] * len(router.projection) for keys in drawn]


def _sides(late_EM: Tensor, early_EM: Tensor, router: Router) -> list[Tensor]:
    """Directions (E, R) of each side that carry most of the form late @ early^T."""
    rank = router.projection.shape[-1]
    (left, r_left), (right, r_right) = torch.linalg.qr(late_EM), torch.linalg.qr(early_EM)
    if router.projection.shape[0] > 1:
        u, size, v = torch.linalg.svd(r_left @ r_right.T)
        return [_wide(left @ u, size, rank), _wide(right @ v.T, size, rank)]
    basis, _ = torch.linalg.qr(torch.cat([left, right], 1))
    form = basis.T @ late_EM @ (basis.T @ early_EM).T
    size, vectors = torch.linalg.eigh(0.5 * (form + form.T))
    # With one space for both, only what draws a token to its like can be told: positive values.
    order = size.argsort(descending=True)
    return [_wide(basis @ vectors[:, order], size[order].clamp_min(0.0), rank)]


def _wide(vectors_EM: Tensor, size_M: Tensor, rank: int) -> Tensor:
    """The first ``rank`` directions, each as wide as the square root of its size."""
    kept = vectors_EM[:, :rank] * size_M[:rank].sqrt()
    return F.pad(kept, (0, rank - kept.shape[1]))


def _without(mean_E: Tensor, directions_ER: Tensor) -> Tensor:
    """The directions, blind to the mean hidden state, which all tokens share."""
    unit = F.normalize(mean_E, dim=0)
    return directions_ER - torch.outer(unit, unit @ directions_ER)


def _like_random(projection_ER: Tensor) -> Tensor:
    """At the scale of a random projection, so that one learning rate suits both."""
    size = projection_ER.square().mean().sqrt().clamp_min(torch.finfo(torch.float32).tiny)
    return projection_ER / size / projection_ER.shape[0] ** 0.5


def cluster(points_NR: Tensor, groups: int, generator: torch.Generator | None = None) -> Tensor:
    """Spherical k-means: unit centroids (K, R) of unit points; an empty cluster stays in place."""
    order = torch.randperm(len(points_NR), generator=generator)[:groups]
    centroids = points_NR[order.to(points_NR.device)]
    for _ in range(ITERATIONS):
        nearest = (points_NR @ centroids.T).argmax(-1)
        sums = torch.zeros_like(centroids).index_add_(0, nearest, points_NR)
        filled = torch.bincount(nearest, minlength=groups) > 0
        centroids = torch.where(filled[:, None], F.normalize(sums, dim=-1), centroids)
    return centroids
