"""Focus on a transformers causal language model: attach, density, detach.

Routers are submodules of the attention modules, so that devices, shards and optimisers find them; a
hook on the decoder makes a snapshot of the settings for each forward pass (:mod:`focus.hooks`), and
a registered attention function routes and attends (:mod:`focus.interface`). In ``full`` mode the
model's own attention function runs: its outputs are the pretrained model's, bit for bit.

Shape suffixes: B batch, T tokens, H query heads, Hr routers (1, or the key heads), K groups.
"""

from __future__ import annotations

import copy
import warnings
from typing import Any, TypeVar

import torch
from torch import nn
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel

from focus.architectures import attention_layers, probe
from focus.call import IMPLEMENTATION
from focus.config import FocusConfig
from focus.density import PairCounts
from focus.groups import Memberships
from focus.hooks import LayerHook, LossHook, ModelHook, pack_states
from focus.interface import attention
from focus.masks import focus_mask
from focus.named import activate, new_routers, refuse_sharded
from focus.state import (
    DEFAULT,
    Adapter,
    FocusState,
    attached,
    attached_whole,
    plain,
    refuse_routers,
    transformers_model,
)

AnyModel = TypeVar("AnyModel", bound=nn.Module)

# At import, so that a model that was attached in another process finds them.
AttentionInterface.register(IMPLEMENTATION, attention)
AttentionMaskInterface.register(IMPLEMENTATION, focus_mask)


def attach(model: AnyModel, config: FocusConfig, seed: int | None = None) -> AnyModel:
    """Adds routers to a model in place, freezes every original weight, and sets ``hard`` mode.

    Args:
        model: a transformers causal LM (see ``focus.architectures``), also one that peft wraps:
            then every parameter keeps its ``requires_grad``, since peft has frozen the weights.
        config: what is routed and how.
        seed: of the routers' random initialisation; None uses torch's global generator.

    Returns:
        The same model.

    Raises:
        ValueError: the model is attached already or its architecture is not supported.
    """
    if not isinstance(config, FocusConfig):
        raise ValueError(f"config: must be a FocusConfig, got {type(config).__name__}")
    inner = transformers_model(model)
    if "focus_state" in inner.__dict__:
        raise ValueError("model: Focus is attached already; call focus.detach(model) first")
    refuse_routers(inner)
    layers = attention_layers(inner)
    refuse_sharded(layers)
    probe(inner, layers)
    generator = None if seed is None else torch.Generator().manual_seed(seed)
    first = Adapter(config, new_routers(config, layers, generator))
    state = FocusState(inner, layers, first)
    try:
        _install(state, inner)
    except BaseException:  # out of memory, say: the model is left as it was
        _remove(state, inner)
        raise
    return model


def _install(state: FocusState, inner: PreTrainedModel) -> None:
    _own_config(inner)
    if not _has_peft(inner):  # which has frozen the weights, and knows what it trains
        inner.requires_grad_(False)
        _warn_of_head(inner)
    for index, layer in state.layers.items():
        handle = layer.module.register_forward_pre_hook(LayerHook(index), with_kwargs=True)
        state.handles.append(handle)
    activate(state, DEFAULT)
    state.made = state.first_router()
    decoder = inner.get_decoder()
    hook = ModelHook(state, decoder)
    for module in [decoder, *_around(inner, decoder)]:
        begin = hook.begin if module is decoder else hook.begin_around
        state.handles += [
            module.register_forward_pre_hook(begin, with_kwargs=True, prepend=True),
            module.register_forward_hook(hook.end, always_call=True),
        ]
    state.handles.append(inner.register_forward_hook(LossHook(state)))
    head = inner.get_output_embeddings()
    if head is not None:
        state.handles.append(head.register_forward_pre_hook(pack_states))
    inner.__dict__["focus_state"] = state  # no module, no tensor: not for torch to register
    decoder.set_attn_implementation(IMPLEMENTATION)


def _warn_of_head(inner: PreTrainedModel) -> None:
    """Tells of a head that is no language model's, which is new as a rule."""
    decoder = inner.get_decoder()
    if inner.get_output_embeddings() is not None or _around(inner, decoder):
        return
    own = {id(p) for p in decoder.parameters()}
    beside = [name for name, p in inner.named_parameters() if id(p) not in own]
    if beside:
        warnings.warn(f"attach: freezes every weight, {', '.join(beside)} among them; to train a "
                      "new head, set its requires_grad_(True) now", stacklevel=4)  # fmt: skip


def _around(inner: PreTrainedModel, decoder: nn.Module) -> list[nn.Module]:
    """Models with further modalities, which build masks for the decoder before it is called."""
    if inner.config.get_text_config(decoder=True) is inner.config:
        return []
    return [each for each in inner.modules() if isinstance(each, PreTrainedModel)
            and each is not decoder and decoder in each.modules()]  # fmt: skip


def _remove(state: FocusState, inner: PreTrainedModel) -> None:
    for handle in state.handles:
        handle.remove()
    for layer in state.layers.values():
        if hasattr(layer.module, "focus_router"):
            del layer.module.focus_router
    for name, parameter in inner.named_parameters():
        before = state.required_grad.get(plain(name))
        if before is not None:
            parameter.requires_grad_(before)
    inner.__dict__.pop("focus_state", None)
    decoder = inner.get_decoder()
    if decoder.config._attn_implementation == IMPLEMENTATION:  # or else somebody's choice since
        decoder.set_attn_implementation(state.implementation)


def _own_config(model: PreTrainedModel) -> None:
    """Gives the model a config of its own: two models may have been built from one object."""
    copies: dict[int, Any] = {}
    copy.deepcopy(model.config, copies)
    for module in model.modules():
        former = module.__dict__.get("config")
        if former is not None and id(former) in copies:
            module.__dict__["config"] = copies[id(former)]


def _has_peft(model: nn.Module) -> bool:
    """Whether peft has put layers into a model: each of its kinds lives in a module of peft's."""
    return any(type(module).__module__.startswith("peft.") for module in model.modules())


def detach(model: AnyModel) -> AnyModel:
    """Removes routers and hooks; weights, ``requires_grad`` flags and outputs are as before.

    Parameters that came after ``attach`` (an adapter of peft) are left as they are.
    """
    _remove(attached(model), transformers_model(model))
    return model


def trainable_parameters(model: nn.Module) -> list[nn.Parameter]:
    """The routers' parameters, layer by layer; those that something has frozen since ``attach``
    (as peft does) require grad again.

    Raises:
        ValueError: Focus is not attached, or layers were taken out of the model since.
    """
    routers = attached_whole(model).routers.values()
    return [p.requires_grad_() for router in routers for p in router.parameters()]  # type: ignore[misc]


def density(model: nn.Module) -> dict[int, float]:
    """Kept over causal pairs of the last forward pass: layer index -> share in (0, 1].

    Exact, counted over real tokens, batch and routings; 1.0 where every pair was computed
    (soft and full mode), NaN where all was padding. Layers that stay local are left out.

    Raises:
        ValueError: Focus is not attached, no forward pass has run, or layers were taken out of the
            model since.
    """
    counted = pair_counts(model)
    return {index: 1.0 if c is None else c.density for index, c in counted.items()}


def memberships(model: nn.Module) -> dict[int, Memberships]:
    """Groups of the tokens of the last hard forward pass: layer index -> (B, Hr, T, K) bool;
    of queries (B, H, T, K) where query heads have groups of their own.

    Raises:
        ValueError: Focus is not attached, no hard forward pass has run, or layers were taken out of
            the model since.
    """
    state = attached_whole(model)
    layers = {} if state.last is None else state.last.layers
    found = {i: layers[i].memberships for i in state.routers if i in layers}
    if len(found) != len(state.routers) or None in found.values():
        raise ValueError(
            "memberships: the last forward pass routed nothing (none has run, it was not in hard "
            "mode, or its window held every pair); run the model on a longer text"
        )
    return {i: each for i, each in found.items() if each is not None}


def pair_counts(model: nn.Module) -> dict[int, PairCounts | None]:
    """Pairs of the last forward pass for each routed layer; None: every pair was computed. Errors
    as of :func:`density`."""
    state = attached_whole(model)
    if state.last is None:
        raise ValueError("density: no forward pass has run since attach; run the model once")
    layers = state.last.layers
    return {i: layers[i].pairs if i in layers else None for i in state.routers}
