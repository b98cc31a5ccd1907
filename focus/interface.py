"""The attention function that transformers calls in place of a model's own.

Every call goes one of four ways: ``full`` (the model's own function), ``soft`` (the training gate),
``hard`` over a whole sequence, and ``cached``, which continues from a key/value cache.

Shape suffixes: B batch, T tokens, M new tokens, E model dimension, H query heads, Hk key heads, D
head dimension, K groups, N further keys of a query.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from focus.attention import focus_attention
from focus.call import KEYWORD, LayerCall, LayerRecord
from focus.config import FocusConfig
from focus.density import PairCounts, count_pairs
from focus.gating import gated_attention
from focus.masks import read_mask
from focus.ngrams import keys_after_ngrams
from focus.routing import Memberships, Router, assignments_of, memberships_of


@dataclass(frozen=True, eq=False)
class Inputs:
    """One attention call: query (B, H, M, D), key and value (B, Hk, M, D) of one dtype; real (B, T)
    bool of all tokens so far or None; limit: tokens of the model's own sliding window."""

    query: Tensor
    key: Tensor
    value: Tensor
    scale: float
    real: Tensor | None
    limit: int | None
    softcap: float | None
    dropout: float


def attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    **kwargs: Any,
) -> tuple[Tensor, Tensor | None]:
    """transformers' attention function: query (B, H, M, D) in, (B, M, H, D) out."""
    layer = kwargs.pop(KEYWORD, None)
    if not isinstance(layer, LayerCall):
        raise ValueError(
            f"{type(module).__name__}: attention implementation 'focus' is set but Focus is not "
            "attached to this module; call focus.attach(model, config)"
        )
    settings = layer.call.settings
    if settings.mode == "full" or layer.router is None:
        own = _own_function(module, layer.call.implementation)
        out, weights = own(module, query, key, value, attention_mask, dropout=dropout,
                           scaling=scaling, **kwargs)  # fmt: skip
        return out, weights
    _refuse(kwargs)
    if settings.tap is not None:
        settings.tap(layer.index, layer.hidden, query, key)
    seen = 0 if layer.cache is None else layer.cache.get_seq_length()
    real, limit = read_mask(attention_mask, query.shape[2], key.shape[2] + seen)
    own_window = kwargs.get("sliding_window")
    if own_window is not None and own_window < query.shape[2] + seen:
        limit = own_window if limit is None else min(limit, own_window)
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    x = Inputs(*_one_dtype(query, key, value), scale, real, limit, kwargs.get("softcap"), dropout)
    run = soft if settings.mode == "soft" else cached if seen else hard
    return run(x, layer, layer.router).transpose(1, 2).contiguous(), None


def _own_function(module: nn.Module, implementation: str) -> Callable[..., tuple[Tensor, Any]]:
    """The function that the module would call without Focus."""
    eager = getattr(sys.modules[type(module).__module__], "eager_attention_forward", None)
    return ALL_ATTENTION_FUNCTIONS.get_interface(implementation, eager)  # type: ignore[no-any-return]


def _refuse(kwargs: dict[str, Any]) -> None:
    if kwargs.get("output_attentions"):
        raise ValueError("output_attentions: Focus forms no attention matrix; leave it off")
    for name in ("position_bias", "s_aux"):
        if kwargs.get(name) is not None:
            raise ValueError(f"{name}: is part of this model's logits and not supported by Focus")


def _one_dtype(query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """As torch's own attention has them: under autocast in its dtype (rotary positions come in
    float32), else in the widest."""
    device = query.device.type
    if torch.is_autocast_enabled(device) and query.dtype != torch.float64:
        dtype = torch.get_autocast_dtype(device)
    else:
        dtype = torch.promote_types(torch.promote_types(query.dtype, key.dtype), value.dtype)
    return query.to(dtype), key.to(dtype), value.to(dtype)


def soft(x: Inputs, layer: LayerCall, router: Router) -> Tensor:
    """The training gate: (B, H, T, D)."""
    config, record = layer.call.settings.config, layer.call.record
    if x.key.shape[2] != x.query.shape[2]:
        raise ValueError(
            f"past_key_values: {x.query.shape[2]} queries over {x.key.shape[2]} keys: soft mode "
            "cannot continue from a key/value cache; pass the whole sequence with use_cache=False, "
            "or generate in hard or full mode"
        )
    learn = router.training and torch.is_grad_enabled() and layer.index not in record.learned
    if learn:
        record.learned.add(layer.index)
    balance = config.balance
    if balance == "causal" and router.training:
        balance = "sinkhorn"
    logits = router(layer.hidden, x.real, balance=balance, temperature=config.temperature,
                    learn=learn)  # fmt: skip
    return gated_attention(
        x.query, x.key, x.value, assignments_of(logits), gate=config.gate, window=config.window,
        sinks=config.sinks, top_k=config.top_k, key_top_k=config.key_top_k,
        probes=router.config.probes, hard_keys=router.config.hard_keys, scale=x.scale, real=x.real,
        limit=x.limit, softcap=x.softcap, dropout=x.dropout,
    )  # fmt: skip


def hard(x: Inputs, layer: LayerCall, router: Router) -> Tensor:
    """The hard mask over a whole sequence: (B, H, T, D); starts a cache where there is one."""
    settings = layer.call.settings
    found = route(x, layer, router, x.real)
    further = _further(x, layer)
    layer.call.record.layers[layer.index] = LayerRecord(
        found, counter(found, settings.config, x.real, further, x.limit)
    )
    if layer.cache is not None:
        layer.cache.begin(rule_of(x, settings.config), x.key, x.value, found.of_keys, x.real)
    raise NotImplementedError


def route(x: Inputs, layer: LayerCall, router: Router, real: Tensor | None) -> Memberships:
    """Hard memberships of the call's tokens."""
    config = layer.call.settings.config
    with torch.no_grad():
        logits = router(layer.hidden, real, balance=config.balance, temperature=config.temperature)
        return memberships_of(logits, config)


def counter(found: Memberships, config: FocusConfig, real: Tensor | None, further: Tensor | None,
            limit: int | None) -> Callable[[], PairCounts]:  # fmt: skip
    """Counts a call's pairs, later."""
    return lambda: count_pairs(
        found.query, found.key, config.window, config.sinks, real, further, limit
    )
