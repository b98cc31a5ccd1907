"""Training gates: how soft assignments weigh distant pairs. All but ``sparse_log`` compute every
pair, O(T^2).

A gate is one function in ``GATES``. A new one is written here and named in
``focus.config.GATES``; nothing else changes.

Shape suffixes: B batch, T tokens, H query heads, Hk key heads, Hr routers (1 or Hk), Hq routings of
queries (Hr or H), D head dimension, K groups.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from focus.attention.api import focus_attention
from focus.attention.checks import for_query_heads, sink_tokens
from focus.attention.dense import attend, pairs_kept
from focus.attention.gated import Gate, gated_attention_in_blocks
from focus.attention.weighted import weighted_attention
from focus.config import FocusConfig
from focus.routing import Assignments, top_k_groups

MOST = 1 - 2**-20  # of an assignment: the logarithm of what is left of it stays finite


@dataclass(frozen=True)
class GateInputs:
    """What a gate sees: query (B, H, T, D), key and value (B, Hk, T, D), the logit scale, the
    assignments (B, Hr, T, K), ``real`` (B, T) and ``pair_mask`` (B or 1, 1, T, T) where there are
    any, a logit soft-cap and dropout. What is T x T is made only for the gates that ask for it."""

    query: Tensor
    key: Tensor
    value: Tensor
    scale: float
    assignments: Assignments
    real: Tensor | None
    pair_mask: Tensor | None
    config: FocusConfig
    softcap: float | None = None
    dropout: float = 0.0

    @property
    def plain(self) -> bool:
        """Whether this is a call on CPU over causal pairs of real tokens and nothing else."""
        on_cpu = self.query.device.type == "cpu" and self.query.dtype != torch.float16
        unmasked = self.real is None and self.pair_mask is None
        return on_cpu and unmasked and self.softcap is None and not self.dropout

    @cached_property
    def allowed(self) -> Tensor:
        """(B, 1, T, T) bool: causal pairs of real tokens that the model itself allows."""
        batch, tokens = self.query.shape[0], self.query.shape[2]
        allowed = (self._distance() >= 0).expand(batch, 1, tokens, tokens)
        if self.real is not None:
            allowed = allowed & self.real[:, None, None, :] & self.real[:, None, :, None]
        return allowed if self.pair_mask is None else allowed & self.pair_mask

    @cached_property
    def distant(self) -> Tensor:
        """(B, 1, T, T) bool: allowed pairs that the window and the sinks do not decide."""
        batch, tokens = self.query.shape[0], self.query.shape[2]
        is_sink = sink_tokens(self.real, batch, tokens, self.config.sinks, self.query.device)
        far = self._distance() >= self.config.window
        return self.allowed & far & ~is_sink[:, None, None, :]

    def _distance(self) -> Tensor:
        position = torch.arange(self.query.shape[2], device=self.query.device)
        return position[:, None] - position[None, :]

    def affinity(self) -> Tensor:
        """g_i . g_j of every pair: (B, Hq, T, T), between 0 and 1."""
        return self.assignments.query @ self.assignments.key.transpose(-1, -2)

    def in_blocks(self, steepness: float | None = None) -> Tensor:
        """The gates ``log`` and, with a steepness, ``eq2`` of a plain call."""
        gate = Gate(self.config.window, self.config.sinks, self.scale, steepness)
        return gated_attention_in_blocks(self.query, self.key, self.value, *self.assignments, gate)

    def attend_densely(self, kept: Tensor, bias: Tensor | None = None,
                       factor: Tensor | None = None) -> Tensor:  # fmt: skip
        """The definition, over the pairs of ``kept`` (B, Hr or 1, T, T)."""
        return attend(
            self.query, self.key, self.value, self.scale, kept=kept, bias=bias, factor=factor,
            softcap=self.softcap, dropout=self.dropout,
        )  # fmt: skip


def eq2(x: GateInputs) -> Tensor:
    """The paper's Eq. 2: distant logits times sigmoid(lambda * affinity).

    At affinity 0 this halves the logit and never removes the pair.
    """
    if x.plain:
        return x.in_blocks(x.config.gate_steepness)
    factor = torch.sigmoid(x.config.gate_steepness * x.affinity())
    factor = torch.where(x.distant, factor, 1.0)
    return x.attend_densely(x.allowed, factor=factor)


def log(x: GateInputs) -> Tensor:
    """Distant logits plus log(affinity): weights times affinity, the hard mask in the limit."""
    if x.plain:
        return x.in_blocks()
    affinity = x.affinity()
    floor = torch.finfo(affinity.dtype).tiny
    bias = torch.where(x.distant, affinity.clamp_min(floor).log(), 0.0)
    return x.attend_densely(x.allowed, bias)


def sparse_log(x: GateInputs) -> Tensor:
    """The ``log`` gate over each token's own top groups alone: cost and memory are the hard mask's.

    A distant pair weighs the sum of g_im g_jm over groups m among the query's ``top_k`` and the
    key's; pairs that share none are left out, and routers learn from the pairs they keep, as those
    of a mixture of experts do. O(T) memory on CPU; the definition, O(T^2), elsewhere and under
    padding, a model's own mask, a soft-cap or dropout.
    """
    query = _kept_log(x.assignments.query, x.config.top_k)
    key = _kept_log(x.assignments.key, x.config.key_top_k)
    if x.plain:
        return weighted_attention(x.query, x.key, x.value, query, key, window=x.config.window,
                                  sinks=x.config.sinks, scale=x.scale)  # fmt: skip
    affinity = query.exp() @ key.exp().transpose(-1, -2)
    floor = torch.finfo(affinity.dtype).tiny
    bias = torch.where(x.distant, affinity.clamp_min(floor).log(), 0.0)
    return x.attend_densely(x.allowed & (~x.distant | ~(affinity <= 0)), bias)


def _kept_log(assignments: Tensor, top_k: int) -> Tensor:
    """log g of a token's ``top_k`` largest groups, -inf of the others: (B, Hr, T, K)."""
    floor = torch.finfo(assignments.dtype).tiny
    kept = top_k_groups(assignments.detach(), top_k)
    return assignments.clamp_min(floor).log().masked_fill(~kept, -torch.inf)


def straight_through(x: GateInputs) -> Tensor:
    """The hard mask forwards, the ``log`` gate's gradient backwards."""
    soft = log(x)
    with torch.no_grad():
        query = top_k_groups(x.assignments.query, x.config.top_k)
        key = top_k_groups(x.assignments.key, x.config.key_top_k)
        correction = _hard(x, query, key) - soft
    return soft + correction


def _hard(x: GateInputs, query: Tensor, key: Tensor) -> Tensor:
    """Attention under the hard mask, by the fast path where it can be."""
    window, sinks = x.config.window, x.config.sinks
    if x.plain:
        return focus_attention(x.query, x.key, x.value, query, key_membership=key, window=window,
                               sinks=sinks, scale=x.scale)  # fmt: skip
    return x.attend_densely(pairs_kept(query, key, window, sinks, x.real) & x.allowed)


GATES: dict[str, Callable[[GateInputs], Tensor]] = {
    "eq2": eq2,
    "log": log,
    "sparse_log": sparse_log,
    "straight_through": straight_through,
}


def gated_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    assignments: Assignments,
    config: FocusConfig,
    *,
    scale: float | None = None,
    real: Tensor | None = None,
    pair_mask: Tensor | None = None,
    softcap: float | None = None,
    dropout: float = 0.0,
) -> Tensor:
    """Soft Focus attention with the config's gate.

    Args:
        query: (B, H, T, D); key, value: (B, Hk, T, D).
        assignments: of queries (B, Hq, T, K) and of keys (B, Hr, T, K); Hr = 1 or Hk, Hq = Hr or H.
        config: gives the gate, window, sinks and the gate's own settings.
        scale: factor of the logits; None means 1/sqrt(D).
        real: (B, T) bool, False for padding; None: all are real.
        pair_mask: (B or 1, 1, T, T) bool, a model's own mask (a sliding window).
        softcap: see :func:`focus.dense_attention`.
        dropout: of the attention weights.

    Returns:
        (B, H, T, D); rows of padding queries are zero.

    Raises:
        ValueError: several probes of hard keys that join several groups.
    """
    own, others = as_gated(assignments, config)
    key, value, others = (for_query_heads(x, own.shape[1]) for x in (key, value, others))
    assignments = Assignments(own, others)
    inputs = GateInputs(
        query, key, value, query.shape[-1] ** -0.5 if scale is None else scale, assignments, real,
        pair_mask, config, softcap, dropout,
    )  # fmt: skip
    return GATES[config.gate](inputs)


def as_gated(assignments: Assignments, config: FocusConfig) -> Assignments:
    """Assignments as gates count them: a query's share of a group as the chance that one of
    ``gate_probes`` draws hits it; keys, where ``gate_keys`` is ``hard``, in the groups they join
    alone, with the gradient of their soft ones.

    Args:
        assignments: of queries (B, Hq, T, K) and of keys (B, Hr, T, K), float32 or wider.
        config: gives ``gate_probes``, ``gate_keys`` and ``key_top_k``.

    Returns:
        Shapes and dtypes as they were; rows need not sum to one any more.

    Raises:
        ValueError: several probes of hard keys that join several groups.
    """
    own, others = assignments
    if config.gate_probes > 1:
        own = -torch.expm1(config.gate_probes * torch.log1p(-own.clamp(max=MOST)))
    if config.gate_keys == "hard" and config.gate_probes > 1 and config.key_top_k > 1:
        raise ValueError(
            "gate_probes: above 1 with gate_keys = 'hard' needs keys of one group; train with "
            "top_k = 1 or probe = 'multi_probe' (the hard mask can be read with others)"
        )
    if config.gate_keys == "hard":
        joined = top_k_groups(others.detach(), config.key_top_k)
        others = joined.to(others.dtype) + others - others.detach()
    return Assignments(own, others)
