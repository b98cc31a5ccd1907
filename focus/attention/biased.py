"""Attention under an additive bias per pair, with a gradient for the bias: the training gates.

The bias itself is T x T (one for each routing), but neither logits nor weights of the query heads
are ever kept: the forward pass is torch's fused CPU kernel, the backward pass works in row blocks.
On other devices, and for what the kernel lacks, the gates use the dense definition.

Shape suffixes: B batch, T tokens, H query heads, Hk key heads, Hr routings (1 or Hk), D head
dimension, G query heads of a key head.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

ROWS = 128  # a block's float32 temporaries (G x 128 x T) then stay near the cores' caches


def biased_attention(query: Tensor, key: Tensor, value: Tensor, bias: Tensor,
                     scale: float) -> Tensor:  # fmt: skip
    """softmax(query @ key^T * scale + bias) @ value on CPU.

    Args:
        query: (B, H, T, D); key, value: (B, Hk, T, D), float32, float64 or bfloat16.
        bias: (B, Hr, T, T) at least float32, -inf where a pair does not count. Every row must
            have a finite entry, and entries above the diagonal must be -inf.
        scale: factor of the logits.

    Returns:
        (B, H, T, D). Differentiable in query, key, value and bias.
    """
    batch, heads, tokens, dim = query.shape
    key_heads = key.shape[1]
    if query.dtype != torch.float64:
        bias = bias.float()  # the kernel takes query's dtype or float32
    grouped = query.reshape(batch * key_heads, heads // key_heads, tokens, dim)
    bias = bias.expand(batch, key_heads, tokens, tokens).flatten(0, 1).unsqueeze(1)
    key, value = key.flatten(0, 1).unsqueeze(1), value.flatten(0, 1).unsqueeze(1)
    out: Tensor = _Biased.apply(grouped, key, value, bias, scale)
    return out.reshape(batch, heads, tokens, dim)


class _Biased(torch.autograd.Function):
    """query (N, G, T, D), key and value (N, 1, T, D), bias (N, 1, T, T), with N = B * Hk."""

    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor, bias: Tensor,
                scale: float) -> Tensor:  # fmt: skip
        shape = query.shape
        out, lse = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
            query, key.expand(shape), value.expand(shape), 0.0, False, attn_mask=bias, scale=scale
        )
        ctx.save_for_backward(query, key, value, bias, out, lse)
        ctx.scale = scale
        return out

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        query, key, value, bias, out, lse = ctx.saved_tensors
        grad = gradients[0]
        dtype = torch.promote_types(query.dtype, torch.float32)
        d_query, d_bias = torch.empty_like(query), torch.zeros_like(bias)
        d_key = torch.zeros(key.shape, dtype=dtype)
        d_value = torch.zeros(value.shape, dtype=dtype)
        for n in range(query.shape[0]):
            own = query[n].to(dtype), key[n, 0].to(dtype), value[n, 0].to(dtype), bias[n, 0]
            flow = grad[n].to(dtype), out[n].to(dtype), lse[n].to(dtype)
            into = d_query[n], d_key[n, 0], d_value[n, 0], d_bias[n, 0]
            for start in range(0, query.shape[2], ROWS):
                _block_backward(slice(start, start + ROWS), own, flow, into, ctx.scale)
        return d_query, d_key.to(key.dtype), d_value.to(value.dtype), d_bias, None


def _block_backward(rows: slice, own: tuple[Tensor, ...], flow: tuple[Tensor, ...],
                    into: tuple[Tensor, ...], scale: float) -> None:  # fmt: skip
    """Gradients of one key head's query rows; keys after the block's last row see none of them."""
    query, key, value, bias = own
    grad, out, lse = (tensor[:, rows] for tensor in flow)
    d_query, d_key, d_value, d_bias = into
    heads, height, dim = grad.shape
    seen = slice(0, rows.start + height)
    q, k, v = query[:, rows].reshape(-1, dim), key[seen], value[seen]
    weights = torch.mm(q, k.T).view(heads, height, -1).mul_(scale)
    weights.add_(bias[rows, seen]).sub_(lse.unsqueeze(-1)).exp_()
    grad = grad.reshape(-1, dim)
    flat = weights.view(heads * height, -1)
    d_value[seen].addmm_(flat.T, grad)
    delta = (grad * out.reshape(-1, dim)).sum(-1, keepdim=True)
    d_logits = torch.mm(grad, v.T).sub_(delta).mul_(flat)
    d_query[:, rows] = torch.mm(d_logits, k).mul_(scale).view(heads, height, dim)
    d_key[seen].addmm_(d_logits.T, q, alpha=scale)
    d_bias[rows, seen] = d_logits.view(heads, height, -1).sum(0)
