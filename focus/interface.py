"""The attention function that transformers calls in place of a model's own.

Every call goes one of four ways: ``full`` (the model's own function), ``soft`` (the training gate),
``hard`` over a whole sequence, and ``cached``, which continues from a key/value cache.

Shape suffixes: B batch, T tokens, M new tokens, E model dimension, H query heads, Hk key heads, D
head dimension, K groups, N further keys of a query.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from focus import masks
from focus.attention import checks
from focus.attention.api import attention_of
from focus.attention.checks import check_arguments, learns, refuse_not_finite
from focus.attention.decode import decode_attention
from focus.attention.dtypes import as_one_dtype
from focus.attention.extra import settle
from focus.attention.operator import causal, traced
from focus.attention.past import Past
from focus.attention.rule import Rule
from focus.attention.train.operator import masked_attention
from focus.call import KEYWORD, LayerRecord, Record, Terms
from focus.config import FocusConfig
from focus.density import PairCounts, count_pairs
from focus.gates import gated_attention
from focus.groups import Memberships, assignments_of
from focus.hooks import LayerCall
from focus.ngrams import keys_after_ngrams
from focus.routing import Router
from focus.scores import RouterWeights
from focus.terms import terms_of


class Inputs(NamedTuple):
    """One attention call: query (B, H, M, D), key and value (B, Hk, M, D) of one dtype."""

    query: Tensor
    key: Tensor
    value: Tensor
    scale: float
    terms: Terms


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
            "attached to this module; call focus.attach(model, config). A model made from the "
            "config of an attached one (a trainer's reference model) is to have its own: "
            "model.set_attn_implementation('sdpa'), or attn_implementation='sdpa' where it is "
            "loaded (TRL: in model_init_kwargs)"
        )
    mode, implementation = layer.call.mode, layer.call.implementation
    if mode.name == "full" or layer.router is None:
        masks.refuse_four_dimensions(attention_mask, implementation)
        return _own_function(module, implementation)(
            module, query, key, value, attention_mask, dropout=dropout, scaling=scaling, **kwargs
        )
    terms = terms_of(layer.call, layer.cache, query, key, attention_mask, dropout, kwargs)
    usual = query.shape[-1] ** -0.5
    scale = usual if scaling is None else scaling
    if mode.tap is not None:
        scaled = query if scale == usual else query * (scale / usual)
        mode.tap(layer.index, layer.hidden, scaled, key)
    if terms.autocast or not query.dtype == key.dtype == value.dtype:
        query, key, value = as_one_dtype(query, key, value)
    x = Inputs(query, key, value, scale, terms)
    run = soft if mode.name == "soft" else cached if terms.seen else hard
    return run(x, layer, layer.router).transpose(1, 2).contiguous(), None


def _own_function(module: nn.Module, implementation: str) -> Callable[..., tuple[Tensor, Any]]:
    name = "eager_attention_forward"  # in the file of the class, or of one that it comes from
    files = (sys.modules[kind.__module__] for kind in type(module).__mro__)
    eager = next((vars(file)[name] for file in files if name in vars(file)), attention)
    return ALL_ATTENTION_FUNCTIONS.get_interface(implementation, eager)


def soft(x: Inputs, layer: LayerCall, router: Router) -> Tensor:
    """The training gate: (B, H, T, D)."""
    config, record, terms = layer.call.config, layer.call.record, x.terms
    if x.key.shape[2] != x.query.shape[2]:
        raise ValueError(
            f"past_key_values: {x.query.shape[2]} queries over {x.key.shape[2]} keys: soft mode "
            "cannot continue from a key/value cache; pass the whole sequence with use_cache=False, "
            "or generate in hard or full mode (peft's prefix tuning puts keys there: use LoRA)"
        )
    if x.query.is_cpu:  # elsewhere the host would wait for the device
        refuse_not_finite(*x[:3], terms.real)
    balance = config.balance
    learn = router.training and torch.is_grad_enabled() and balance != "softmax"
    learn = learn and layer.index not in record.learned
    if learn:
        record.learned.add(layer.index)
    if balance == "causal" and router.training:
        balance = "sinkhorn"
    logits = router(layer.hidden, terms.real, balance=balance, temperature=config.temperature,
                    learn=learn)  # fmt: skip
    heavy = router.heavy(layer.hidden) if config.heavy_hitters else None
    top_k = config.top_k + (heavy is not None)
    return gated_attention(
        x.query, x.key, x.value, assignments_of(logits, heavy), gate=config.gate,
        window=config.window, sinks=config.sinks, top_k=top_k, key_top_k=config.key_top_k,
        probes=router.config.probes, hard_keys=router.config.hard_keys, scale=x.scale,
        real=terms.real, limit=terms.limit, softcap=terms.softcap, dropout=terms.dropout,
    )  # fmt: skip


def hard(x: Inputs, layer: LayerCall, router: Router) -> Tensor:
    """The hard mask over a whole sequence: (B, H, T, D); begins the cache, where there is one."""
    config, terms, backend = layer.call.config, x.terms, layer.call.mode.backend
    if x.key.shape[2] != x.query.shape[2]:
        raise ValueError(
            f"past_key_values: {x.query.shape[2]} queries over {x.key.shape[2]} keys, and no cache "
            "that Focus knows holds the others; pass the whole sequence with use_cache=False"
        )
    # Sinkhorn is told of sequences that are too short for it.
    refused = layer.cache is not None and config.balance == "sinkhorn"
    if terms.whole and not refused:
        return _whole(x, layer, router)
    of_model = terms.limit is not None or terms.softcap is not None
    found = _route(layer, router, terms.real)
    further = _further_keys(x, layer, terms.real)
    layer.call.record.layers[layer.index] = LayerRecord(
        found,
        partial(count_pairs, *found, config.window, config.sinks, terms.real, further, terms.limit),
    )
    if of_model and backend not in ("auto", "dense"):
        raise ValueError(
            f"backend: {backend!r} knows no sliding window or soft-cap of the model's "
            "own; use 'auto' or 'dense'"
        )
    if of_model and not terms.dropout and not learns(*x[:3]) and backend != "dense":
        rule = _rule(x, config, router)
        past = Past(rule) if layer.cache is None else layer.cache.continued(rule)
        return decode_attention(
            *x[:3], found.query, found.of_keys, past, real=terms.real, scale=x.scale,
            softcap=terms.softcap, extra_keys=further,
        )[0]  # fmt: skip
    if layer.cache is not None:
        layer.cache.begin(_rule(x, config, router), x.key, x.value, found.of_keys, terms.real)
    if of_model or terms.dropout:
        return masked_attention(
            x.query, x.key, x.value, found.query, found.of_keys, window=config.window,
            sinks=config.sinks, scale=x.scale, real=terms.real, limit=terms.limit,
            softcap=terms.softcap, dropout=terms.dropout, further=further,
        )  # fmt: skip
    checked = check_arguments(x.query, x.key, x.value, found.query, config.window, config.sinks,
                              x.scale, terms.real, found.key, further)  # fmt: skip
    return attention_of(_settled(checked, layer.call.record), backend)


def _settled(x: checks.Inputs, record: Record) -> checks.Inputs:
    """Further keys are the same in every layer, so those that count are found once a pass."""
    if x.extra is None or not x.on_cpu or traced((x.query, x.key, x.value)):
        return x
    if record.settled is None:
        record.settled = settle(x).extra
    return replace(x, extra=record.settled, settled=True)


def _whole(x: Inputs, layer: LayerCall, router: Router) -> Tensor:
    """:func:`hard` where the window holds every pair: there is nothing to route, unless more tokens
    follow."""
    cache, (batch, _, tokens, _) = layer.cache, x.query.shape
    if cache is not None:
        _further_keys(x, layer, None)
        config = layer.call.config
        cache.begin(_rule(x, config, router), x.key, x.value, None, None, layer.hidden, config)
    _record_whole(layer, router, batch * tokens * (tokens + 1) // 2)
    return causal(*x[:3], x.scale)


def _record_whole(layer: LayerCall, router: Router, pairs: int) -> None:
    """Pairs of sequences, all of them kept; groups, should somebody ask where a cache needs
    them."""
    found = None if layer.cache is None else partial(_route, layer, router, None)
    layer.call.record.layers[layer.index] = LayerRecord(found, partial(_every, router, pairs))


def _every(router: Router, pairs: int) -> PairCounts:
    kept = pairs * router.query_routings
    return PairCounts(kept, kept, 0, 0)


def cached(x: Inputs, layer: LayerCall, router: Router) -> Tensor:
    """The hard mask of new tokens over a cache: (B, H, M, D)."""
    cache, config = layer.cache, layer.call.config
    if cache is None:
        raise RuntimeError("there is no cache to continue from")
    past = cache.past
    one_more = x.terms.whole and x.query.shape[2] == 1
    if one_more and past.hidden and cache.goes_on(config, x.key) and not learns(*x[:3]):
        return _one_more(x, layer, router, past)
    _refuse_to_continue(x, layer)
    cache.continued(_rule(x, config, router))
    real = x.terms.new_real
    if x.terms.real is None:
        past.real = None  # padding has gone, with its row or its tokens
    weights = cache.router_weights(router)
    if past.hidden:
        past.route(router(torch.cat(past.hidden, 1), mask=config, weights=weights).of_keys)
    found = _route(layer, router, None, weights)
    further = _further_keys(x, layer, real)
    out, count = decode_attention(
        *x[:3], found.query, found.of_keys, past, real=real, scale=x.scale,
        softcap=x.terms.softcap, extra_keys=further,
    )  # fmt: skip
    layer.call.record.layers[layer.index] = LayerRecord(found, count)
    return out


def _one_more(x: Inputs, layer: LayerCall, router: Router, past: Past) -> Tensor:
    """:func:`cached` where the window holds the one new token and all before it."""
    if layer.call.record.further is None:
        _further_keys(x, layer, None)
    _record_whole(layer, router, len(x.query) * (past.seen + 1))
    return past.extend(x.query, layer.hidden, x.key, x.value, x.scale)


def _route(layer: LayerCall, router: Router, real: Tensor | None,
           weights: RouterWeights | None = None) -> Memberships:  # fmt: skip
    """Hard memberships of the call's tokens."""
    config = layer.call.config
    found: Memberships = router(layer.hidden, real, mask=config, weights=weights)
    return found


def _further_keys(x: Inputs, layer: LayerCall, real: Tensor | None) -> Tensor | None:
    """Keys (B, M, N) that the call's tokens meet word for word, the same in every layer; None where
    n-grams are not matched."""
    config, call, cache = layer.call.config, layer.call, layer.cache
    if not config.ngram:
        return None
    if call.record.further is not None:
        return call.record.further.to(x.query.device)  # layers may be on several
    if call.ids is None or call.ids.shape != (len(x.query), x.query.shape[2]):
        raise ValueError(
            "ngram: n-grams are matched by token ids, and this forward pass has none, or not one a "
            "token; pass input_ids instead of inputs_embeds, or set ngram=0 (for prompt tuning)"
        )
    how = config.ngram, config.ngram_keys, config.window
    if cache is None:
        found = keys_after_ngrams(call.ids, *how, x.query.shape[2], real)
    else:
        found = cache.further_keys(call.ids, real, *how)
    call.record.further = found
    return found.to(x.query.device)


def _rule(x: Inputs, config: FocusConfig, router: Router) -> Rule:
    """What the cache must know, and go on with."""
    fewest, most = router.groups_of_queries(config)
    (named, learnt), keys = router.name, (config.all_groups, most, config.key_top_k)
    return Rule(config.window, config.sinks, x.terms.own_window, *keys, config.balance,
                config.ngram > 0, named, None if fewest == most else fewest, learnt)  # fmt: skip


def _refuse_to_continue(x: Inputs, layer: LayerCall) -> None:
    if layer.call.config.balance == "sinkhorn":
        raise ValueError(
            "balance: 'sinkhorn' looks at the whole sequence, so past tokens would change their "
            "groups at every step; generate with balance='causal' "
            "(focus.mode(model, 'hard', balance='causal')), or pass use_cache=False"
        )
    if x.terms.dropout:
        raise ValueError(
            "past_key_values: the model is in training mode, with dropout of its attention; call "
            "model.eval() before generating"
        )
