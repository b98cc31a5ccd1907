"""Gated attention by blocks of query rows: every device, dtype and mask, forward and backward.

A block's pairs are formed, used and dropped; the backward pass forms them again from the saved
log-sum-exp. Memory is O(T * ROWS) a head. Blocks rather than FlexAttention because its backward
does not run on CPU, so that what trains on a GPU could not be tested without one.

All arithmetic is float32 (float64 for float64 inputs), so half precision neither overflows before
the logits are scaled nor rounds the softmax.

Shape suffixes: B batch, T tokens, H query heads, Hk key heads, A routings (the most of queries' and
keys'), S query heads of a routing, D head dimension, K groups, C queries of a block, N their keys.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from focus import paper
from focus.attention.checks import cleared, for_query_heads, named_keys, sink_tokens

ROWS = 128  # of a block, on a CPU, whose caches hold it
ENTRIES = 2**25  # of a block's pairs elsewhere, where every call costs a launch
MOST_UNGATED = 60 * 0.6931471805599453  # log of an ungated weight over its row's sum, at most


@dataclass(frozen=True)
class Rule:
    """What decides pairs and weights beside the tensors; see :func:`focus.gates.gated_attention`.

    ``gate``: ``log``, ``eq2``, or ``hard``: distant pairs of affinity 0 are removed, others kept
    as they are.
    """

    gate: str
    window: int
    sinks: int
    scale: float
    limit: int | None = None
    softcap: float | None = None
    dropout: float = 0.0


@dataclass(frozen=True)
class Inputs:
    """query (B, H, T, D); key, value (B, Hk, T, D); query_groups (B, Hq, T, K) and key_groups
    (B, Hr, T, K) in float32, in float64 where query is; real (B, T) bool; further (B, T, N) int64,
    positions of keys that count as near for a query, -1: none; seed: a scalar int64 on CPU, where
    there is dropout."""

    query: Tensor
    key: Tensor
    value: Tensor
    query_groups: Tensor
    key_groups: Tensor
    real: Tensor | None = None
    further: Tensor | None = None
    seed: Tensor | None = None


@dataclass(frozen=True)
class Block:
    """Queries ``rows`` and the keys ``seen``: which pairs there are, which are distant, and the
    affinity of each, (B, A, 1, C, N)."""

    rows: slice
    seen: slice
    allowed: Tensor
    distant: Tensor
    affinity: Tensor


def forward(x: Inputs, rule: Rule) -> tuple[Tensor, Tensor]:
    """out (B, H, T, D) and the natural log-sum-exp (B, H, T), both float32 or float64; rows without
    any pair are 0 in both."""
    blocks = _Blocks(x, rule)
    out = torch.empty_like(blocks.query, memory_format=torch.contiguous_format)
    lse = out.new_empty(out.shape[:3])
    for block in blocks:
        scores = blocks.scores(block, blocks.logits(block))
        level = scores.logsumexp(-1, keepdim=True)
        level = level.masked_fill_(level == -torch.inf, 0.0)
        weights = scores.sub_(level).exp_()
        kept = blocks.undropped(block)
        weights = weights if kept is None else weights.mul_(kept)
        lse[:, :, block.rows] = level.squeeze(-1).flatten(1, 2)
        out[:, :, block.rows] = blocks.weigh(weights, blocks.value[:, :, block.seen])
    return out, lse


def backward(x: Inputs, rule: Rule, grad: Tensor, out: Tensor, lse: Tensor) -> list[Tensor]:
    """Gradients in query, key, value, query_groups and key_groups, each as wide as ``out``."""
    blocks = _Blocks(x, rule)
    d_query, d_key, d_value = (torch.zeros_like(each) for each in blocks.attended)
    d_groups = [torch.zeros_like(each) for each in blocks.groups]
    grad = cleared(grad.to(out.dtype), x.real)
    delta = (grad * out).sum(-1, keepdim=True)
    for block in blocks:
        rows, seen = block.rows, block.seen
        logits = blocks.logits(block)
        scores = blocks.scores(block, logits)
        weights = scores.sub_(blocks.by_routing(lse[:, :, rows, None])).exp_()
        d_weights = blocks.meet(grad[:, :, rows], blocks.value[:, :, seen])
        kept = blocks.undropped(block)
        dropped = weights if kept is None else weights * kept
        d_weights = d_weights if kept is None else d_weights.mul_(kept)
        d_value[:, :, seen] += blocks.gather(dropped, grad[:, :, rows])
        moved = d_weights.sub_(blocks.by_routing(delta[:, :, rows]))
        d_logits, d_affinity = blocks.gradients(block, logits, weights, moved, lse)
        d_query[:, :, rows] = blocks.weigh(d_logits, blocks.key[:, :, seen]).mul_(rule.scale)
        d_key[:, :, seen] += blocks.gather(d_logits, blocks.query[:, :, rows]).mul_(rule.scale)
        of_queries, of_keys = blocks.groups
        d_groups[0][:, :, rows] = d_affinity @ of_keys[:, :, seen]
        d_groups[1][:, :, seen] += d_affinity.transpose(-1, -2) @ of_queries[:, :, rows]
    routings = (x.query_groups.shape[1], x.key_groups.shape[1])
    summed = (d.unflatten(1, (n, -1)).sum(2) for d, n in zip(d_groups, routings, strict=True))
    return [d_query, d_key, d_value, *summed]


class _Blocks:
    """The tensors of a call, wide and without what stands in padding, and its blocks in order."""

    def __init__(self, x: Inputs, rule: Rule) -> None:
        self.x, self.rule = x, rule
        wide = torch.promote_types(x.query.dtype, torch.float32)
        self.attended = [cleared(each.to(wide), x.real) for each in (x.query, x.key, x.value)]
        self.query, self.key, self.value = self.attended
        routings = max(x.query_groups.shape[1], x.key_groups.shape[1])
        self.groups = [
            for_query_heads(cleared(each, x.real), routings)
            for each in (x.query_groups, x.key_groups)
        ]
        batch, heads, tokens, _ = x.query.shape
        here = x.query.device.type == "cpu"
        self.rows = ROWS if here else max(ROWS, ENTRIES // (batch * heads * tokens))
        self.sink_BT = sink_tokens(x.real, batch, tokens, rule.sinks, x.query.device)

    def __iter__(self) -> Iterator[Block]:
        tokens = self.query.shape[2]
        for start in range(0, tokens, self.rows):
            stop = min(start + self.rows, tokens)
            low = 0 if self.rule.limit is None else max(0, start - self.rule.limit + 1)
            yield self._block(slice(start, stop), slice(low, stop))

    def _block(self, rows: slice, seen: slice) -> Block:
        of_queries, of_keys = self.groups
        position = torch.arange(seen.start, seen.stop, device=of_queries.device)
        distance = position[rows.start - seen.start :, None] - position
        allowed = distance >= 0 if self.rule.limit is None else (
            (distance >= 0) & (distance < self.rule.limit)
        )  # fmt: skip
        allowed = allowed[None, None]
        if self.x.real is not None:
            real = self.x.real[:, None]
            allowed = allowed & real[:, :, rows, None] & real[:, :, None, seen]
        distant = allowed & (distance >= self.rule.window) & ~self.sink_BT[:, None, None, seen]
        if self.x.further is not None:
            count = seen.stop - seen.start
            distant = distant & ~named_keys(self.x.further[:, rows], seen.start, count)
        affinity = of_queries[:, :, rows] @ of_keys[:, :, seen].transpose(-1, -2)
        return Block(rows, seen, allowed.unsqueeze(2), distant.unsqueeze(2), affinity.unsqueeze(2))

    def logits(self, block: Block) -> Tensor:
        """(B, A, S, C, N), scaled and soft-capped."""
        logits = self.meet(self.query[:, :, block.rows], self.key[:, :, block.seen])
        logits = logits.mul_(self.rule.scale)
        cap = self.rule.softcap
        return logits if cap is None else logits.div_(cap).tanh_().mul_(cap)

    def scores(self, block: Block, logits: Tensor) -> Tensor:
        """Logits after the gate, -inf where there is no pair."""
        if self.rule.gate == "eq2":
            gated = paper.eq2_scores(logits, block.affinity)
        else:
            affinity = block.affinity > 0 if self.rule.gate == "hard" else block.affinity
            gated = logits + affinity.to(logits.dtype).log()
        return torch.where(block.distant, gated, logits).masked_fill_(~block.allowed, -torch.inf)

    def gradients(self, block: Block, logits: Tensor, weights: Tensor, moved: Tensor, lse: Tensor
                  ) -> tuple[Tensor, Tensor]:  # fmt: skip
        """Gradients of the products of queries and keys (B, A, S, C, N) over the scale, and of the
        affinity (B, A, C, N)."""
        d_logits, distant = weights * moved, block.distant
        if self.rule.gate == "eq2":
            gated, d_affinity = paper.eq2_gradients(logits, block.affinity, d_logits)
            d_logits = torch.where(distant, gated, d_logits)
        elif self.rule.gate == "log":
            # exp(logit) instead of weight / affinity: a pair of affinity 0 still learns.
            above = logits - self.by_routing(lse[:, :, block.rows, None])
            d_affinity = above.clamp_max_(MOST_UNGATED).exp_().mul_(moved)
        else:
            d_affinity = torch.zeros_like(d_logits)
        d_affinity = d_affinity.masked_fill_(~distant, 0.0).sum(2)
        if self.rule.softcap is not None:
            d_logits = d_logits * (1 - (logits / self.rule.softcap).square())
        return d_logits, d_affinity

    def undropped(self, block: Block) -> Tensor | None:
        """0 where a weight is dropped, 1 / (1 - dropout) elsewhere; the same in both directions."""
        if self.x.seed is None or not self.rule.dropout:
            return None
        device, routings = self.query.device, self.groups[0].shape[1]
        draw = torch.Generator(device).manual_seed(int(self.x.seed) + block.rows.start)
        batch, heads = self.query.shape[:2]
        shape = (batch, routings, heads // routings, *block.affinity.shape[-2:])
        kept = torch.rand(shape, generator=draw, device=device) >= self.rule.dropout
        return kept.to(self.query.dtype).div_(1 - self.rule.dropout)

    # Query heads share key heads: their rows stand below each other in one product.

    def meet(self, left_BHCD: Tensor, right_BHkND: Tensor) -> Tensor:
        """Products of all pairs, (B, A, S, C, N)."""
        pairs = self._by_key_head(left_BHCD) @ right_BHkND.transpose(-1, -2)
        pairs = pairs.unflatten(2, (-1, left_BHCD.shape[2])).flatten(1, 2)
        return self.by_routing(pairs)

    def weigh(self, weights: Tensor, right_BHkND: Tensor) -> Tensor:
        """Sums over keys, (B, H, C, D)."""
        weights = weights.flatten(1, 2)
        out = self._by_key_head(weights) @ right_BHkND
        return out.unflatten(2, (-1, weights.shape[2])).flatten(1, 2)

    def gather(self, weights: Tensor, left_BHCD: Tensor) -> Tensor:
        """Sums over queries and the query heads of a key head, (B, Hk, N, D)."""
        weights = self._by_key_head(weights.flatten(1, 2))
        return weights.transpose(-1, -2) @ self._by_key_head(left_BHCD)

    def by_routing(self, x_BHCN: Tensor) -> Tensor:
        """(B, A, S, C, N)."""
        return x_BHCN.unflatten(1, (self.groups[0].shape[1], -1))

    def _by_key_head(self, x_BHCN: Tensor) -> Tensor:
        return x_BHCN.unflatten(1, (self.key.shape[1], -1)).flatten(2, 3)
