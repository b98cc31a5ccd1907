"""Attention under the gates ``log`` and ``eq2``, with gradients, on CPU: all pairs, block by block.

What a gate does to a block's pairs is made from the assignments where it is needed, forwards and
backwards, so that nothing T x T is kept.

Shape suffixes: B batch, Hr routings of a sequence, H query heads, Hk key heads, G query heads of a
key head, T tokens, D head dimension, K groups, C rows of a block, N keys up to its last row.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from focus.attention.groups import routing_heads
from focus.attention.kernels import cpu_forward, mask_dtype
from focus.attention.native import gate as native

ROWS = 128  # a block's float32 temporaries (G x 128 x T) then stay near the cores' caches


@dataclass(frozen=True)
class Gate:
    """What distant logits become: ``steepness`` None: logit + log(affinity); otherwise logit *
    sigmoid(steepness * affinity). Pairs within the window and with sinks stay as they are."""

    window: int
    sinks: int
    scale: float
    steepness: float | None = None

    def pairs(self, own_CK: Tensor, others_NK: Tensor, start: int) -> _Pairs:
        """The gate of a block of queries from row ``start`` on, with the keys up to its last."""
        affinity = own_CK @ others_NK.T
        if self.steepness is None:
            affinity.clamp_min_(torch.finfo(affinity.dtype).tiny)
            return _Pairs(affinity, None, self._decide(affinity.log(), start, 0.0, -torch.inf))
        factor = self._decide(affinity.mul_(self.steepness).sigmoid_(), start, 1.0, 1.0)
        after = torch.ones(factor.shape, dtype=torch.bool).triu_(start + 1)
        return _Pairs(affinity, factor, torch.zeros_like(factor).masked_fill_(after, -torch.inf))

    def d_affinity(self, pairs: _Pairs, d_pairs: Tensor, start: int) -> Tensor:
        """Gradient of the affinity from that of the biases, or of the factors."""
        if pairs.factor is not None and self.steepness is not None:
            # A near pair's factor is 1, and 1 - 1 leaves nothing of its gradient.
            return d_pairs.mul_(pairs.factor).mul_(1 - pairs.factor).mul_(self.steepness)
        return self._decide(d_pairs.div_(pairs.affinity), start, 0.0, 0.0)

    def _decide(self, pairs_CN: Tensor, start: int, near: float, after: float) -> Tensor:
        """Sets near pairs and those after the query, in place."""
        height, keys = pairs_CN.shape
        pairs_CN[:, : self.sinks] = near
        low = min(max(0, start - self.window + 1), start)
        if self.sinks > start:
            low = 0  # sinks may come after a query of this block
        distance = torch.arange(start, start + height)[:, None] - torch.arange(low, keys)
        band = pairs_CN[:, low:]
        band.masked_fill_(distance < self.window, near).masked_fill_(distance < 0, after)
        return pairs_CN


@dataclass(frozen=True)
class _Pairs:
    """A block's affinity, factor (None: 1) and bias, (C, N) each."""

    affinity: Tensor
    factor: Tensor | None
    bias: Tensor


def gated_attention_in_blocks(query: Tensor, key: Tensor, value: Tensor, own: Tensor,
                              others: Tensor, gate: Gate) -> Tensor:  # fmt: skip
    """Causal attention with gated distant logits on CPU.

    Args:
        query: (B, H, T, D); key, value: (B, Hk, T, D), float32, float64 or bfloat16.
        own, others: (B, Hr, T, K) assignments of queries and keys, Hr = 1 or Hk.
        gate: what becomes of distant logits.

    Returns:
        (B, H, T, D). Differentiable in all five tensors; memory O(T (D + K)).
    """
    wide = mask_dtype(query.dtype)
    own, others = own.to(wide), others.to(wide)
    if gate.steepness is None:
        found = native.gated(query, key, value, own, others, window=gate.window, sinks=gate.sinks,
                             scale=gate.scale)  # fmt: skip
        if found is not None:
            return found
    out: Tensor = _Gated.apply(query, key, value, own, others, gate)
    return out


class _Gated(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor, own: Tensor, others: Tensor,
                gate: Gate) -> Tensor:  # fmt: skip
        batch, heads, tokens, _ = query.shape
        out, lse = torch.empty_like(query), own.new_empty(batch, heads, tokens)
        for b, r, q_heads, k_heads in routing_heads(query, key, own.shape[1]):
            for rows in _blocks(tokens):
                seen = slice(0, rows.stop)
                pairs = gate.pairs(own[b, r, rows], others[b, r, seen], rows.start)
                part, part_lse = _block_forward(
                    query[b, q_heads, rows], key[b, k_heads, seen], value[b, k_heads, seen], pairs,
                    gate.scale,
                )  # fmt: skip
                out[b, q_heads, rows], lse[b, q_heads, rows] = part, part_lse
        ctx.save_for_backward(query, key, value, own, others, out, lse)
        ctx.gate = gate
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        query, key, value, own, others, out, lse = ctx.saved_tensors
        wide, gate = own.dtype, ctx.gate
        sums = [torch.zeros(x.shape, dtype=wide) for x in (query, key, value, own, others)]
        for b, r, q_heads, k_heads in routing_heads(query, key, own.shape[1]):
            own_key, own_value = (x[b, k_heads].to(wide) for x in (key, value))
            own_query, own_grad, own_out = (x[b, q_heads].to(wide) for x in (query, grad, out))
            heads = _Heads(
                own_key, own_value, own_query, own_grad, own_out, lse[b, q_heads],
                sums[0][b, q_heads], sums[1][b, k_heads], sums[2][b, k_heads],
            )  # fmt: skip
            for rows in _blocks(query.shape[2]):
                seen = slice(0, rows.stop)
                pairs = gate.pairs(own[b, r, rows], others[b, r, seen], rows.start)
                d_pairs = heads.block_backward(rows, pairs, gate.scale)
                d_affinity = gate.d_affinity(pairs, d_pairs, rows.start)
                sums[3][b, r, rows] = d_affinity @ others[b, r, seen]
                sums[4][b, r, seen].addmm_(d_affinity.T, own[b, r, rows])
        return *(x.to(query.dtype) for x in sums[:3]), *sums[3:], None


def _block_forward(query: Tensor, key: Tensor, value: Tensor, pairs: _Pairs,
                   scale: float) -> tuple[Tensor, Tensor]:  # fmt: skip
    """out (H, C, D) and lse (H, C) of queries (H, C, D) over keys and values (Hk, N, D)."""
    if pairs.factor is None:
        out, lse = cpu_forward(query[None], key[None], value[None], scale, mask=pairs.bias)
        return out[0], lse[0]
    wide = pairs.bias.dtype
    grouped = query.to(wide).unflatten(0, (key.shape[0], -1))
    logits = torch.matmul(grouped, key.to(wide).unsqueeze(1).transpose(-1, -2))
    logits = logits.mul_(pairs.factor * scale).add_(pairs.bias).flatten(0, 1)
    lse = torch.logsumexp(logits, -1)
    weights = logits.sub_(lse.unsqueeze(-1)).exp_().unflatten(0, grouped.shape[:2])
    return torch.matmul(weights, value.to(wide).unsqueeze(1)).flatten(0, 1).to(query.dtype), lse


@dataclass(frozen=True)
class _Heads:
    """The heads of one routing: key, value (Hk, T, D); query, grad, out (H, T, D); lse (H, T); and
    where gradients are added."""

    key: Tensor
    value: Tensor
    query: Tensor
    grad: Tensor
    out: Tensor
    lse: Tensor
    d_query: Tensor
    d_key: Tensor
    d_value: Tensor

    def block_backward(self, rows: slice, pairs: _Pairs, scale: float) -> Tensor:
        """Adds the gradients of a block of rows; the sum over heads of the factor's or, where there
        is none, the bias's (C, N)."""
        together = self.query.shape[0] // self.key.shape[0]
        d_pairs = torch.zeros_like(pairs.bias)
        seen = slice(0, pairs.bias.shape[1])
        for h in range(self.key.shape[0]):
            own = slice(h * together, (h + 1) * together)
            query, grad, out = (x[own, rows] for x in (self.query, self.grad, self.out))
            shape, dim = query.shape, query.shape[-1]
            query, grad = query.reshape(-1, dim), grad.reshape(-1, dim)
            raw = torch.mm(query, self.key[h, seen].T).mul_(scale).unflatten(0, shape[:2])
            logits = raw if pairs.factor is None else raw * pairs.factor
            weights = (logits + pairs.bias).sub_(self.lse[own, rows].unsqueeze(-1)).exp_()
            weights = weights.flatten(0, 1)
            self.d_value[h, seen].addmm_(weights.T, grad)
            delta = (grad * out.reshape(-1, dim)).sum(-1, keepdim=True)
            d_logits = torch.mm(grad, self.value[h, seen].T).sub_(delta).mul_(weights)
            d_logits = d_logits.unflatten(0, shape[:2])
            if pairs.factor is None:
                d_pairs += d_logits.sum(0)
            else:
                d_pairs += raw.mul_(d_logits).sum(0)
                d_logits.mul_(pairs.factor)
            d_logits = d_logits.flatten(0, 1)
            self.d_query[own, rows] = (d_logits @ self.key[h, seen]).mul_(scale).view(shape)
            self.d_key[h, seen].addmm_(d_logits.T, query, alpha=scale)
        return d_pairs


def _blocks(tokens: int) -> list[slice]:
    return [slice(a, min(a + ROWS, tokens)) for a in range(0, tokens, ROWS)]
