"""``focus::gated_attention``: one operator for every gate, with its backward, that torch can
compile, checkpoint and cast around. Compiled kernels, one for CPU and Triton's for CUDA, compute
what they can, blocks the rest.

Shape suffixes: B batch, T tokens, H query heads, Hk key heads, Hq and Hr routings of queries and
keys, D head dimension, K groups.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from focus.attention.train import blocks, cuda, kernel
from focus.attention.train.blocks import Inputs, Rule


def forward(
    query: Tensor, key: Tensor, value: Tensor, query_groups: Tensor, key_groups: Tensor,
    real: Tensor | None, further: Tensor | None, seed: Tensor | None, gate: str, window: int,
    sinks: int, scale: float, limit: int | None, softcap: float | None, dropout: float,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Attention with gated distant logits, of the fields of
    :class:`focus.attention.train.blocks.Inputs` and :class:`focus.attention.train.blocks.Rule`.

    Returns:
        out (B, H, T, D), not rounded to the inputs' dtype: what it would lose weighs in every
        gradient. And the log-sum-exp (B, H, T) for the backward pass: natural by blocks, of base 2
        by the kernels.
    """
    x = Inputs(query, key, value, query_groups, key_groups, real, further, seed)
    rule = Rule(gate, window, sinks, scale, limit, softcap, dropout)
    with torch.autocast(query.device.type, enabled=False):
        spans = kernel.spans_of(x, rule)
        if spans is not None:
            return kernel.forward(x, rule, spans)
        return cuda.forward(x, rule) if cuda.computes(x, rule) else blocks.forward(x, rule)


def backward(
    grad: Tensor, out: Tensor, lse: Tensor,
    query: Tensor, key: Tensor, value: Tensor, query_groups: Tensor, key_groups: Tensor,
    real: Tensor | None, further: Tensor | None, seed: Tensor | None, gate: str, window: int,
    sinks: int, scale: float, limit: int | None, softcap: float | None, dropout: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """Gradients of :func:`forward` in its first five arguments, in their dtypes."""
    x = Inputs(query, key, value, query_groups, key_groups, real, further, seed)
    rule = Rule(gate, window, sinks, scale, limit, softcap, dropout)
    with torch.autocast(query.device.type, enabled=False):
        spans = kernel.spans_of(x, rule)
        if spans is not None:
            found = kernel.backward(x, rule, spans, grad, out, lse)
        else:
            path = cuda if cuda.computes(x, rule) else blocks
            found = path.backward(x, rule, grad, out, lse)
    inputs = (query, key, value, query_groups, key_groups)
    one, two, three, four, five = (
        each.to(like.dtype) for each, like in zip(found, inputs, strict=True)
    )
    return one, two, three, four, five


gated_attention_op = torch.library.custom_op("focus::gated_attention", forward, mutates_args=())
gated_attention_backward_op = torch.library.custom_op(
    "focus::gated_attention_backward", backward, mutates_args=()
)


@gated_attention_op.register_fake
def _(query: Tensor, *rest: Any) -> tuple[Tensor, Tensor]:
    wide = torch.promote_types(query.dtype, torch.float32)
    return query.new_empty(query.shape, dtype=wide), query.new_empty(query.shape[:3], dtype=wide)


@gated_attention_backward_op.register_fake
def _(grad: Tensor, out: Tensor, lse: Tensor, *rest: Any) -> tuple[Tensor, ...]:
    return tuple(each.new_empty(each.shape) for each in rest[:5])


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    tensors, ctx.rule = inputs[:8], inputs[8:]
    ctx.mark_non_differentiable(output[1])
    ctx.save_for_backward(*output, *tensors)


def _backward(ctx: Any, grad: Tensor, _: Any) -> tuple[Tensor | None, ...]:
    found = gated_attention_backward_op(grad, *ctx.saved_tensors, *ctx.rule)
    return *found, *([None] * (3 + len(ctx.rule)))


gated_attention_op.register_autograd(_backward, setup_context=_save)


def masked_attention(
    query: Tensor, key: Tensor, value: Tensor, membership: Tensor, key_membership: Tensor, *,
    window: int, sinks: int, scale: float, real: Tensor | None = None, limit: int | None = None,
    softcap: float | None = None, dropout: float = 0.0, further: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """Attention under the hard mask and what a model adds to it, by the definition in blocks of
    rows: every pair is formed, O(T^2) time and O(T) memory. Memberships are (B, Hq, T, K) and
    (B, Hr, T, K) bool, other arguments as in :func:`forward`; differentiable in query, key and
    value.
    """
    wide = torch.promote_types(query.dtype, torch.float32)
    seed = torch.randint(2**62, (), device="cpu") if dropout else None
    out = gated_attention_op(query, key, value, membership.to(wide), key_membership.to(wide), real,
                             further, seed, "hard", window, sinks, scale, limit, softcap,
                             dropout)[0]  # fmt: skip
    return out.to(value.dtype)
