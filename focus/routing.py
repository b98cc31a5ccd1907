"""Routing: from hidden states to group assignments, memberships and density.

Shape suffixes: B batch, S sides (those of queries, then the keys'; one where both are the same), Hr
routers a layer (1, or the key heads), Hq queries' routings (Hr, or the query heads), T tokens, E
model dimension, R routing dimension, K groups.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from focus.config import FocusConfig


class Assignments(NamedTuple):
    """Soft group assignments of a layer's tokens: query (B, Hq, T, K), key (B, Hr, T, K), rows sum
    to one.

    ``key`` is the same tensor as ``query`` where a token has one set of scores.
    """

    query: Tensor
    key: Tensor


class Memberships(NamedTuple):
    """Hard group memberships: query (B, Hq, T, K) bool, key (B, Hr, T, K) bool or None where it
    equals ``query``."""

    query: Tensor
    key: Tensor | None


class Prepared(NamedTuple):
    """A router's parameters as scores are computed from them.

    weight: (S * Hr * R, E), one product for all; centroids: (S, Hr, R, K) over the temperature,
    normalised where the similarity says so.
    """

    weight: Tensor
    centroids: Tensor


class Router(nn.Module):
    """Learnable centroids of one attention layer (paper: Section 2).

    ``query_heads`` is needed, a multiple of ``key_heads``, where the config's ``sides`` says so.

    Parameters are ``projection`` (S, Hr, E, R) and ``centroids`` (S, Hr, K, R), float32 whatever
    the model's dtype; with one side and one router these are the paper's E*R + K*R numbers. With
    ``sides = "query_heads"`` a key head's query heads are sides of their own, before the keys'. The
    buffer ``potentials`` (S, Hr, K) holds the frozen potentials of the ``causal`` balance and
    ``batches`` how many training batches they average.
    """

    projection: nn.Parameter
    centroids: nn.Parameter
    potentials: Tensor
    batches: Tensor

    def __init__(self, config: FocusConfig, hidden_size: int, key_heads: int,
                 generator: torch.Generator | None = None,
                 query_heads: int | None = None) -> None:  # fmt: skip
        super().__init__()
        self.config = config
        together = 1
        if config.sides == "query_heads":
            together = _heads_together(query_heads, key_heads)
        sides = {"one": 1, "two": 2, "query_heads": together + 1}[config.sides]
        heads = key_heads if config.routers == "kv_head" else 1
        shape = (sides, heads, hidden_size, config.routing_dim)
        projection = torch.randn(shape, generator=generator) / hidden_size**0.5
        shape = (sides, heads, config.num_groups, config.routing_dim)
        centroids = torch.randn(shape, generator=generator) / config.routing_dim**0.5
        self.projection = nn.Parameter(projection)
        self.centroids = nn.Parameter(centroids)
        self.register_buffer("potentials", torch.zeros(sides, heads, config.num_groups))
        self.register_buffer("batches", torch.zeros((), dtype=torch.int64))

    def scores(self, hidden_BTE: Tensor, ready: Prepared | None = None) -> Tensor:
        """Similarity of tokens and centroids over the temperature: (B, S, Hr, T, K).

        ``ready``: the parameters from :meth:`prepared`, where many calls share them.

        ``dot``: the paper's (hidden @ projection) @ centroids^T. ``cosine``: of the layer-normed
        hidden state's projection and the centroid. At least float32.
        """
        ready = self.prepared(hidden_BTE.dtype) if ready is None else ready
        hidden = hidden_BTE.to(ready.weight.dtype)
        cosine = self.config.similarity == "cosine"
        if cosine:
            hidden = F.layer_norm(hidden, hidden.shape[-1:])
        routed = F.linear(hidden, ready.weight)
        routed = routed.unflatten(-1, self.projection.shape[:2] + self.projection.shape[3:])
        if cosine:
            routed = F.normalize(routed, dim=-1)
        return routed.permute(0, 2, 3, 1, 4) @ ready.centroids

    def prepared(self, dtype: torch.dtype) -> Prepared:
        """The parameters as they are now, for hidden states of ``dtype``; at least float32."""
        dtype = torch.promote_types(dtype, torch.float32)
        weight = self.projection.to(dtype).transpose(2, 3).flatten(0, 2)
        centroids = self.centroids.to(dtype)
        if self.config.similarity == "cosine":
            centroids = F.normalize(centroids, dim=-1)
        return Prepared(weight, centroids.transpose(-1, -2) / self.config.temperature)

    def forward(self, hidden_BTE: Tensor, real_BT: Tensor | None = None,
                balance: str | None = None,
                config: FocusConfig | None = None) -> Assignments:  # fmt: skip
        """Assignments of every token, by the config's balance or the one named.

        Args:
            hidden_BTE: input of the attention layer, any floating dtype.
            real_BT: bool, False for padding, which takes no part in a balance; None: all real.
            balance: overrides the config's (``softmax``, ``sinkhorn`` or ``causal``).
            config: read instead of the router's own (its potentials, say).

        Raises:
            ValueError: Sinkhorn is to balance more groups than the sequence has tokens.
        """
        logits = self.balanced_logits(hidden_BTE, real_BT, balance, config)
        assignments = torch.softmax(logits, -1)
        return Assignments(of_queries(assignments), assignments[:, -1])

    def balanced_logits(self, hidden_BTE: Tensor, real_BT: Tensor | None = None,
                        balance: str | None = None, config: FocusConfig | None = None,
                        ready: Prepared | None = None) -> Tensor:  # fmt: skip
        """scores/temperature + potential, (B, S, Hr, T, K): assignments are its softmax.

        In training mode, whatever the balance, the potentials that Sinkhorn finds on this batch
        also enter the running average of the frozen ones.
        """
        config = config or self.config
        balance = balance or config.balance
        scores = self.scores(hidden_BTE, ready)
        if balance == "causal" and self.training:
            balance = config.training_balance
        if balance == "sinkhorn" and scores.shape[-2] < config.num_groups:
            raise ValueError(
                f"num_groups: {config.num_groups} groups cannot be balanced over "
                f"{scores.shape[-2]} tokens; give longer sequences, fewer groups or another balance"
            )
        learns = self.training and torch.is_grad_enabled()
        if balance == "sinkhorn" or learns:
            with torch.set_grad_enabled(torch.is_grad_enabled() and balance == "sinkhorn"):
                found = potentials_of(scores, config, real_BT)
            if learns:
                self._observe(found.detach())
            if balance == "sinkhorn":
                return scores + found.unsqueeze(-2)
        if balance == "softmax":
            return scores
        if config.potentials == "lagged":
            return scores + lagged_potentials(scores, config, real_BT)
        return scores + self.potentials.to(scores.dtype)[:, :, None, :]

    @torch.no_grad()
    def _observe(self, found: Tensor) -> None:
        self.batches += 1
        # A plain mean for the first batches, then one over about the last twenty: centroids move.
        weight = max(1.0 / float(self.batches), 0.05)
        self.potentials.lerp_(found.mean(0).to(self.potentials.dtype), weight)

    def memberships(self, assignments: Tensor, config: FocusConfig | None = None) -> Memberships:
        """Hard memberships from assignments or balanced logits (B, S, Hr, T, K), with the
        router's own top_k and probe or those of the config given."""
        config = config or self.config
        query = top_k_groups(of_queries(assignments), config.top_k)
        if not config.separate_keys:
            return Memberships(query, None)
        return Memberships(query, top_k_groups(assignments[:, -1], config.key_top_k))


def _heads_together(query_heads: int | None, key_heads: int) -> int:
    if not query_heads or query_heads % key_heads:
        raise ValueError(
            f"query_heads: sides = 'query_heads' needs how many there are, a multiple of the "
            f"{key_heads} key heads, got {query_heads}"
        )
    return query_heads // key_heads


def of_queries(x_BSHrTK: Tensor) -> Tensor:
    """The queries' part of assignments or logits: (B, Hq, T, K), query heads in their order."""
    if x_BSHrTK.shape[1] == 1:
        return x_BSHrTK[:, 0]
    return x_BSHrTK[:, :-1].transpose(1, 2).flatten(1, 2)


def top_k_groups(assignments: Tensor, top_k: int) -> Tensor:
    """The ``top_k`` largest entries of each row as a bool mask of the same shape.

    Ties go to the lower group index, so exactly ``top_k`` groups are taken (method: hard mask).
    """
    if top_k == 1:
        order = assignments.argmax(-1, keepdim=True)
    else:
        order = torch.argsort(assignments, dim=-1, descending=True, stable=True)[..., :top_k]
    return torch.zeros_like(assignments, dtype=torch.bool).scatter_(-1, order, True)


def sinkhorn(scores: Tensor, iterations: int, real_BT: Tensor | None = None) -> Tensor:
    """Logits balanced over the whole sequence: scores + potential (paper: Eq. 2's assignments).

    Args:
        scores: (B, S, Hr, T, K), already divided by the temperature.
        iterations: normalisations over tokens, each followed by one over groups.
        real_BT: bool, False for tokens that take no part; None: all are real.

    Returns:
        (B, S, Hr, T, K); their softmax over groups is Sinkhorn's matrix. Later tokens move the
        assignments of earlier ones: not causal.
    """
    return scores + sinkhorn_potentials(scores, iterations, real_BT).unsqueeze(-2)


def potentials_of(scores: Tensor, config: FocusConfig, real_BT: Tensor | None = None) -> Tensor:
    """Sinkhorn's potentials (B, S, Hr, K) of the sides that the config balances; the others' are
    zero. Arguments as of :func:`sinkhorn`."""
    if config.balanced_sides == "both":
        return sinkhorn_potentials(scores, config.sinkhorn_iterations, real_BT)
    keys = sinkhorn_potentials(scores[:, -1:], config.sinkhorn_iterations, real_BT)
    return torch.cat([keys.new_zeros(*keys.shape[:1], scores.shape[1] - 1, *keys.shape[2:]), keys],
                     1)  # fmt: skip


def sinkhorn_potentials(scores: Tensor, iterations: int, real_BT: Tensor | None = None) -> Tensor:
    """Potentials v (B, S, Hr, K) with softmax(scores + v) = Sinkhorn's balanced assignments.

    Exp(scores) is divided by its sum over tokens, then over groups, ``iterations`` times, in log
    space. Gradients flow through every iteration.
    """
    if real_BT is not None:
        scores = scores.masked_fill(~real_BT[:, None, None, :, None], float("-inf"))
    potentials = scores.new_zeros(*scores.shape[:-2], scores.shape[-1])
    share = scores.new_zeros(*scores.shape[:-1], 1)
    for _ in range(iterations):
        potentials = -torch.logsumexp(scores - share, -2)
        share = _row_normaliser(scores + potentials.unsqueeze(-2))
    # Only differences between groups matter; a zero mean makes potentials of batches comparable.
    return potentials - potentials.mean(-1, keepdim=True)


def _row_normaliser(logits: Tensor) -> Tensor:
    # A padding row is all -inf, and its log-sum-exp must not turn -inf - -inf into NaN.
    norm = torch.logsumexp(logits, -1, keepdim=True)
    return norm.masked_fill(torch.isneginf(norm), 0.0)


def lagged_potentials(scores: Tensor, config: FocusConfig, real_BT: Tensor | None) -> Tensor:
    """Potentials (B, S, Hr, T, K) from the tokens before each stretch: causal by construction.

    The stretch of ``lag_stride`` tokens from position p uses Sinkhorn's potentials over the
    ``lag_tokens`` tokens before p; the first stretch has none and uses zero.
    """
    stretches = []
    for start in range(0, scores.shape[-2], config.lag_stride):
        length = min(config.lag_stride, scores.shape[-2] - start)
        past = slice(max(0, start - config.lag_tokens), start)
        stretches.append(_past_potentials(scores, past, config, real_BT, length))
    return torch.cat(stretches, -2)


def _past_potentials(scores: Tensor, past: slice, config: FocusConfig, real_BT: Tensor | None,
                     length: int) -> Tensor:  # fmt: skip
    shape = (*scores.shape[:-2], length, scores.shape[-1])
    if past.stop == 0:
        return scores.new_zeros(shape)
    real = None if real_BT is None else real_BT[:, past]
    found = potentials_of(scores[..., past, :], config, real)
    if real is not None:
        found = torch.where(real.any(-1)[:, None, None, None], found, 0.0)
    return found.unsqueeze(-2).expand(shape)


def balance_statistics(membership: Tensor, real_BT: Tensor | None = None) -> dict[str, float]:
    """How evenly tokens spread over groups, averaged over batch and routers.

    Args:
        membership: (B, Hr, T, K) bool.
        real_BT: bool, False for padding.

    Returns:
        ``largest_group``: share of tokens in the fullest group (balanced top-1: 1/K);
        ``one_plus_cv2``: 1 + squared coefficient of variation of the group sizes, the factor by
        which imbalance raises the cost of the group call.
    """
    weight = membership.double()
    if real_BT is not None:
        weight = weight * real_BT[:, None, :, None]
    sizes = weight.sum(-2)
    shares = sizes / sizes.sum(-1, keepdim=True)
    groups = membership.shape[-1]
    return {
        "largest_group": float(shares.amax(-1).mean()),
        "one_plus_cv2": float((shares.square().sum(-1) * groups).mean()),
    }
