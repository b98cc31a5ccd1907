"""Training on the full attention's own weights: how much of them a token's groups hold.

Layer by layer, with no gradient through the model: queries choose the groups in which their
heaviest distant keys are, and keys the groups of the queries that weigh them.

Shape suffixes: B batch, H query heads, Hk key heads, T tokens, D head dimension, K groups.
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
from focus.config import FocusConfig
from focus.gates import gated_assignments
from focus.routing import Assignments, Router, assignments_of

IMPLEMENTATION = "focus_mass"


def mass_loss(model: PreTrainedModel, input_ids: Tensor, **how: Any) -> Tensor:
    """-log of the share of full attention's distant weight that falls on pairs whose groups meet,
    nats, by the assignments as gates count them; the mean over layers, in which heads and queries
    count by their distant weight. A float32 scalar.

    Args:
        model: attached; its layers attend fully meanwhile.
        input_ids: (B, T) int64, without padding, longer than the window.
        how: overrides the config, but for the gate: there is none.

    Raises:
        ValueError: ``how`` names a gate, Focus is not attached, no pair is distant, the model has a
            sliding window or a soft-cap, or :func:`focus.gates.gated_assignments` refuses the
            config.
    """
    if "gate" in how:
        raise ValueError("retrofit.hard_from: the loss 'mass' runs no gate; leave it out")
    state = model.focus_state
    config = state.config.replace(**how)
    if input_ids.shape[1] <= config.window:
        raise ValueError(
            f"input_ids: {input_ids.shape[1]} tokens have no pair beyond the window of "
            f"{config.window}; give longer texts (retrofit.context) or a smaller window"
        )
    seen: dict[nn.Module, Tensor] = {}  # hidden states of the layer that is running
    losses: list[Tensor] = []
    learns = torch.is_grad_enabled()

    def attention(module: nn.Module, query: Tensor, key: Tensor, value: Tensor,
                  attention_mask: Tensor | None, scaling: float | None = None,
                  **rest: Any) -> tuple[Tensor, None]:  # fmt: skip
        scale = plain_scale("retrofit.loss", query, key, attention_mask, scaling, rest)
        with torch.set_grad_enabled(learns):
            # Not within the checkpoint: a second pass would move the potentials twice.
            gated = _gated(module.focus_router, seen.pop(module), config)
            losses.append(checkpoint(mass_left_out, query, key, *gated, config, scale,
                                     use_reentrant=False, preserve_rng_state=False))  # fmt: skip
        # Repeated, since not every kernel of torch's takes keys that heads share.
        key, value = (for_query_heads(x, query.shape[1]) for x in (key, value))
        out = scaled_dot_product_attention(query, key, value, is_causal=True, scale=scale)
        return out.transpose(1, 2).contiguous(), None

    def look(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        seen[module] = args[0] if args else kwargs["hidden_states"]

    routed = [layer.module for layer in state.layers.values() if not layer.local]
    handles = [module.register_forward_pre_hook(look, with_kwargs=True) for module in routed]
    try:
        with torch.no_grad(), attending(model, IMPLEMENTATION, attention):
            model.base_model(input_ids=input_ids, use_cache=False)
    finally:
        for handle in handles:
            handle.remove()
    return torch.stack(losses).mean()


def _gated(router: Router, hidden: Tensor, config: FocusConfig) -> Assignments:
    """Assignments as training gates count them, balanced as training balances."""
    training = router.training and config.balance == "causal"
    logits = router(hidden, balance="sinkhorn" if training else config.balance,
                    temperature=config.temperature,
                    learn=router.training and torch.is_grad_enabled())  # fmt: skip
    return gated_assignments(assignments_of(logits), probes=config.probes,
                             hard_keys=config.hard_keys, key_top_k=config.key_top_k)  # fmt: skip


def mass_left_out(query: Tensor, key: Tensor, of_queries: Tensor, of_keys: Tensor,
                  config: FocusConfig, scale: float) -> Tensor:  # fmt: skip
    """One layer's part of :func:`mass_loss`, a scalar in the assignments' dtype.

    Args:
        query: (B, H, T, D); key: (B, Hk, T, D).
        of_queries, of_keys: how much a token counts in each group, (B, Hr, T, K), Hr being 1, Hk
            or H.
        config: gives window and sinks.
        scale: factor of the logits.
    """
    heads, position = query.shape[1], torch.arange(query.shape[2], device=query.device)
    distance = position[:, None] - position
    distant = (distance >= config.window) & (position >= config.sinks)
    of_queries, of_keys = (for_query_heads(x, heads) for x in (of_queries, of_keys))
    with torch.no_grad():
        query, key = (x.to(of_keys.dtype) for x in (query, for_query_heads(key, heads)))
        logits = (query @ key.transpose(-1, -2)).mul_(scale).masked_fill_(distance < 0, -torch.inf)
        weights = logits.softmax(-1).masked_fill_(~distant, 0.0)
        del logits
        total = weights.sum(-1)
    kept = (of_queries * (weights @ of_keys)).sum(-1)
    tiny = torch.finfo(kept.dtype).tiny
    surprise = total.clamp_min(tiny).log() - kept.clamp_min(tiny).log()
    return (total * surprise).sum() / total.sum().clamp_min(tiny)
