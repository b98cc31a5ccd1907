"""Attention under a bias and a factor per pair, with gradients for both: the training gates on CPU.

The bias and the factor are T x T (one for each routing), but neither logits nor weights of the
query heads are ever kept. Without a factor the forward pass is torch's fused kernel; with one, and
in every backward pass, rows are taken in blocks. On other devices, and for what the kernel lacks,
the gates use the dense definition.

Shape suffixes: B batch, T tokens, H query heads, Hk key heads, Hr routings (1 or Hk), D head
dimension, G query heads of a key head, N = B * Hk.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

ROWS = 128  # a block's float32 temporaries (G x 128 x T) then stay near the cores' caches


def gated_scores_attention(query: Tensor, key: Tensor, value: Tensor, bias: Tensor, scale: float,
                           factor: Tensor | None = None) -> Tensor:  # fmt: skip
    """softmax(query @ key^T * scale * factor + bias) @ value on CPU.

    Args:
        query: (B, H, T, D); key, value: (B, Hk, T, D), float32, float64 or bfloat16.
        bias: (B, Hr, T, T) at least float32, -inf where a pair does not count. Every row must
            have a finite entry, and entries above the diagonal must be -inf.
        scale: factor of the logits.
        factor: (B, Hr, T, T) at least float32; None: 1.

    Returns:
        (B, H, T, D). Differentiable in query, key, value, bias and factor.
    """
    batch, heads, tokens, dim = query.shape
    key_heads = key.shape[1]
    grouped = query.reshape(batch * key_heads, heads // key_heads, tokens, dim)

    def own_head(pairs: Tensor) -> Tensor:
        if query.dtype != torch.float64:
            pairs = pairs.float()  # the kernel takes query's dtype or float32
        return pairs.expand(batch, key_heads, tokens, tokens).flatten(0, 1).unsqueeze(1)

    key, value = key.flatten(0, 1).unsqueeze(1), value.flatten(0, 1).unsqueeze(1)
    factor = None if factor is None else own_head(factor)
    out: Tensor = _Gated.apply(grouped, key, value, own_head(bias), factor, scale)
    return out.reshape(batch, heads, tokens, dim)


class _Head(NamedTuple):
    """One key head: query (G, T, D), key and value (T, D), bias and factor (T, T)."""

    query: Tensor
    key: Tensor
    value: Tensor
    bias: Tensor
    factor: Tensor | None
    scale: float

    def logits(self, rows: slice) -> tuple[Tensor, Tensor]:
        """Scaled scores of a block's rows with the keys before its end, and their gated logits."""
        heads, _, dim = self.query.shape
        query = self.query[:, rows]
        seen = slice(0, rows.start + query.shape[1])
        raw = torch.mm(query.reshape(-1, dim), self.key[seen].T).mul_(self.scale)
        raw = raw.view(heads, query.shape[1], -1)
        gated = raw.clone() if self.factor is None else raw * self.factor[rows, seen]
        return raw, gated.add_(self.bias[rows, seen])


class _Gated(torch.autograd.Function):
    """query (N, G, T, D), key and value (N, 1, T, D), bias and factor (N, 1, T, T)."""

    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor, bias: Tensor,
                factor: Tensor | None, scale: float) -> Tensor:  # fmt: skip
        if factor is None:
            shape = query.shape
            out, lse = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
                query, key.expand(shape), value.expand(shape), 0.0, False, attn_mask=bias,
                scale=scale,
            )  # fmt: skip
        else:
            out, lse = _forward_in_blocks(query, key, value, bias, factor, scale)
        ctx.save_for_backward(query, key, value, bias, factor, out, lse)
        ctx.scale = scale
        return out

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        query, key, value, bias, factor, out, lse = ctx.saved_tensors
        grad = gradients[0]
        dtype = torch.promote_types(query.dtype, torch.float32)
        d_query, d_bias = torch.empty_like(query), torch.zeros_like(bias)
        d_factor = None if factor is None else torch.zeros_like(factor)
        d_key = torch.zeros(key.shape, dtype=dtype)
        d_value = torch.zeros(value.shape, dtype=dtype)
        for n in range(query.shape[0]):
            head = _head(n, query, key, value, bias, factor, ctx.scale)
            flow = grad[n].to(dtype), out[n].to(dtype), lse[n].to(dtype)
            own_factor = None if d_factor is None else d_factor[n, 0]
            into = _Head(d_query[n], d_key[n, 0], d_value[n, 0], d_bias[n, 0], own_factor, 1.0)
            for start in range(0, query.shape[2], ROWS):
                _block_backward(slice(start, start + ROWS), head, flow, into)
        return d_query, d_key.to(key.dtype), d_value.to(value.dtype), d_bias, d_factor, None


def _head(n: int, query: Tensor, key: Tensor, value: Tensor, bias: Tensor, factor: Tensor | None,
          scale: float) -> _Head:  # fmt: skip
    dtype = torch.promote_types(query.dtype, torch.float32)
    own_factor = None if factor is None else factor[n, 0]
    return _Head(query[n].to(dtype), key[n, 0].to(dtype), value[n, 0].to(dtype), bias[n, 0],
                 own_factor, scale)  # fmt: skip


def _forward_in_blocks(query: Tensor, key: Tensor, value: Tensor, bias: Tensor, factor: Tensor,
                       scale: float) -> tuple[Tensor, Tensor]:  # fmt: skip
    out = torch.empty_like(query)
    lse = torch.empty(query.shape[:3], dtype=torch.promote_types(query.dtype, torch.float32))
    for n in range(query.shape[0]):
        head = _head(n, query, key, value, bias, factor, scale)
        for start in range(0, query.shape[2], ROWS):
            rows = slice(start, start + ROWS)
            _, logits = head.logits(rows)
            norm = torch.logsumexp(logits, -1)
            weights = logits.sub_(norm.unsqueeze(-1)).exp_()
            out[n][:, rows] = (weights @ head.value[: weights.shape[-1]]).to(out.dtype)
            lse[n][:, rows] = norm
    return out, lse


def _block_backward(rows: slice, head: _Head, flow: tuple[Tensor, ...], into: _Head) -> None:
    """Gradients of one key head's query rows; keys after the block's last row see none of them."""
    grad, out, lse = (tensor[:, rows] for tensor in flow)
    heads, height, dim = grad.shape
    raw, weights = head.logits(rows)
    weights = weights.sub_(lse.unsqueeze(-1)).exp_().view(heads * height, -1)
    seen = slice(0, weights.shape[-1])
    query = head.query[:, rows].reshape(-1, dim)
    grad = grad.reshape(-1, dim)
    into.value[seen].addmm_(weights.T, grad)
    delta = (grad * out.reshape(-1, dim)).sum(-1, keepdim=True)
    d_logits = torch.mm(grad, head.value[seen].T).sub_(delta).mul_(weights)
    d_logits = d_logits.view(heads, height, -1)
    into.bias[rows, seen] = d_logits.sum(0)
    if head.factor is not None and into.factor is not None:
        into.factor[rows, seen] = raw.mul_(d_logits).sum(0)
        d_logits = d_logits.mul_(head.factor[rows, seen])
    d_logits = d_logits.view(heads * height, -1)
    d_query = torch.mm(d_logits, head.key[seen]).mul_(head.scale)
    into.query[:, rows] = d_query.view(heads, height, dim).to(into.query.dtype)
    into.key[seen].addmm_(d_logits.T, query, alpha=head.scale)
