"""Training on the full attention's own weights: how much of them a token's groups hold.

Layer by layer, with no gradient through the model: queries choose the groups in which their
heaviest distant keys are, and keys the groups of the queries that weigh them.

Shape suffixes: B batch, H query heads, T tokens, K groups.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention
from torch.utils.checkpoint import checkpoint
from transformers import PreTrainedModel

from experiments.attending import attending, plain_scale
from focus.attention.checks import for_query_heads
from focus.gating import GateInputs, as_gated
from focus.routing import Assignments

IMPLEMENTATION = "focus_mass"


def mass_loss(model: PreTrainedModel, input_ids: Tensor, **how: Any) -> Tensor:
    """Mean over layers and heads of -log(share of full attention's distant weight that soft
    assignments keep), nats, queries weighed by their distant weight; a float32 scalar.

    Args:
        model: attached; its layers attend fully meanwhile.
        input_ids: (B, T), without padding.
        how: must be empty: there is no gate to override.

    Raises:
        ValueError: ``how`` names a gate, or the model has a sliding window or a soft-cap.
    """
    if how:
        raise ValueError("retrofit.hard_from: the loss 'mass' runs no gate; leave it out")
    losses: list[Tensor] = []

    def attention(module: nn.Module, query: Tensor, key: Tensor, value: Tensor,
                  attention_mask: Tensor | None, scaling: float | None = None,
                  **rest: Any) -> tuple[Tensor, None]:  # fmt: skip
        scale = plain_scale(query, key, attention_mask, scaling, rest)
        layer: Any = module._focus_layer
        hidden = layer.take_hidden()
        if layer.router is not None:
            config = layer.state.config
            with torch.enable_grad():
                # Not within the checkpoint: a second pass would move the potentials twice.
                found = layer.router(hidden, None, layer.state.balance, config)
                own, others = as_gated(found, config)
                inputs = GateInputs(query, key, value, scale, Assignments(own, others), None, None,
                                    config)  # fmt: skip
                losses.append(checkpoint(mass_left_out, inputs, own, others, use_reentrant=False))
        out = scaled_dot_product_attention(query, key, value, is_causal=True, scale=scale,
                                           enable_gqa=True)  # fmt: skip
        return out.transpose(1, 2).contiguous(), None

    with torch.no_grad(), attending(model, IMPLEMENTATION, attention, "soft"):
        model.base_model(input_ids=input_ids, use_cache=False)
    return torch.stack(losses).mean()


def mass_left_out(inputs: GateInputs, own: Tensor, others: Tensor) -> Tensor:
    """-log of the share of distant weight that assignments of queries ``own`` (B, Hq, T, K) and of
    keys ``others`` (B, Hr, T, K) keep, a scalar."""
    heads = inputs.query.shape[1]
    own, others = for_query_heads(own, heads), for_query_heads(others, heads)
    with torch.no_grad():
        query, key = inputs.query.float(), for_query_heads(inputs.key, heads).float()
        logits = query @ key.transpose(-1, -2) * inputs.scale
        weights = logits.masked_fill_(~inputs.allowed, -torch.inf).softmax(-1)
        weights = weights.masked_fill_(~inputs.distant, 0.0)
        total = weights.sum(-1)
    kept = (own * (weights @ others)).sum(-1)
    tiny = torch.finfo(kept.dtype).tiny
    surprise = total.clamp_min(tiny).log() - kept.clamp_min(tiny).log()
    return (total * surprise).sum() / total.sum().clamp_min(tiny)
