"""Training gates: how soft assignments weigh distant pairs. All pairs are computed, O(T^2).

A gate is one function in ``GATES``. A new one is written here and named in
``focus.config.GATES``; nothing else changes.

Shape suffixes: B batch, T tokens, H query heads, Hk key heads, Hr routers (1 or Hk), D head
dimension, K groups.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from focus.attention.checks import sink_tokens
from focus.attention.dense import attend, pairs_kept
from focus.attention.gated import gated_scores_attention
from focus.config import FocusConfig
from focus.routing import Assignments, top_k_groups


@dataclass(frozen=True)
class GateInputs:
    """What a gate sees: query (B, H, T, D), key and value (B, Hk, T, D), the logit scale, the
    assignments (B, Hr, T, K), ``allowed`` (B, 1, T, T) causal pairs of real tokens, ``distant``
    (B, 1, T, T) those that the window and the sinks do not decide, a logit soft-cap and dropout."""

    query: Tensor
    key: Tensor
    value: Tensor
    scale: float
    assignments: Assignments
    allowed: Tensor
    distant: Tensor
    real: Tensor | None
    config: FocusConfig
    softcap: float | None = None
    dropout: float = 0.0

    def affinity(self) -> Tensor:
        """g_i . g_j of every pair: (B, Hr, T, T), between 0 and 1."""
        return self.assignments.query @ self.assignments.key.transpose(-1, -2)

    def attend(self, *, bias: Tensor | None = None, factor: Tensor | None = None) -> Tensor:
        """Attention over the allowed pairs, gated by a bias and a factor (B, Hr, T, T)."""
        on_cpu = self.query.device.type == "cpu" and self.query.dtype != torch.float16
        plain = self.softcap is None and not self.dropout and self.real is None
        if on_cpu and plain:
            bias = torch.zeros((), dtype=torch.float32) if bias is None else bias
            bias = torch.where(self.allowed, bias, float("-inf"))
            return gated_scores_attention(
                self.query, self.key, self.value, bias, self.scale, factor
            )
        return self.attend_densely(self.allowed, bias, factor)

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
    factor = torch.sigmoid(x.config.gate_steepness * x.affinity())
    factor = torch.where(x.distant, factor, 1.0)
    return x.attend(factor=factor)


def log(x: GateInputs) -> Tensor:
    """Distant logits plus log(affinity): weights times affinity, the hard mask in the limit."""
    affinity = x.affinity()
    floor = torch.finfo(affinity.dtype).tiny
    bias = torch.where(x.distant, affinity.clamp_min(floor).log(), 0.0)
    return x.attend(bias=bias)


def straight_through(x: GateInputs) -> Tensor:
    """The hard mask forwards, the ``log`` gate's gradient backwards."""
    soft = log(x)
    with torch.no_grad():
        query = top_k_groups(x.assignments.query, x.config.top_k)
        key = top_k_groups(x.assignments.key, x.config.key_top_k)
        kept = pairs_kept(query, key, x.config.window, x.config.sinks, x.real) & x.allowed
        hard = x.attend_densely(kept)
        correction = hard - soft
    return soft + correction


GATES: dict[str, Callable[[GateInputs], Tensor]] = {
    "eq2": eq2,
    "log": log,
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
        assignments: (B, Hr, T, K) of queries and of keys, Hr = 1 or Hk.
        config: gives the gate, window, sinks and the gate's own settings.
        scale: factor of the logits; None means 1/sqrt(D).
        real: (B, T) bool, False for padding; None: all are real.
        pair_mask: (B or 1, 1, T, T) bool, a model's own mask (a sliding window).
        softcap: see :func:`focus.dense_attention`.
        dropout: of the attention weights.

    Returns:
        (B, H, T, D); rows of padding queries are zero.
    """
    batch, _, tokens, dim = query.shape
    position = torch.arange(tokens, device=query.device)
    distance = position[:, None] - position[None, :]
    allowed = (distance >= 0).expand(batch, 1, tokens, tokens)
    if real is not None:
        allowed = allowed & real[:, None, None, :] & real[:, None, :, None]
    if pair_mask is not None:
        allowed = allowed & pair_mask
    is_sink = sink_tokens(real, batch, tokens, config.sinks, query.device)
    distant = allowed & (distance >= config.window) & ~is_sink[:, None, None, :]
    inputs = GateInputs(
        query, key, value, dim**-0.5 if scale is None else scale, assignments, allowed, distant,
        real, config, softcap, dropout,
    )  # fmt: skip
    return GATES[config.gate](inputs)
