"""Focus on a transformers causal language model: attach, mode, density, detach.

One mechanism for every architecture: a pre-hook on each attention module hands the layer's hidden
states to its router, and a registered attention function routes and attends. In ``full`` mode the
model runs its own attention function, so its outputs are the pretrained model's, bit for bit.

Shape suffixes: B batch, T tokens, E model dimension, H query heads, Hk key heads, D head dimension,
K groups.
"""

from __future__ import annotations

from collections.abc import Iterator
from types import TracebackType
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel

from focus.architectures import AttentionLayer, attention_layers
from focus.config import FocusConfig
from focus.density import PairCounts, count_pairs
from focus.forward import FocusLayer, attention
from focus.masks import focus_mask
from focus.routing import Memberships, Router

MODES = ("soft", "hard", "full")
IMPLEMENTATION = "focus"


class FocusState:
    """What ``attach`` leaves on a model: its config, mode, layers and how to undo it."""

    def __init__(self, config: FocusConfig, model: PreTrainedModel) -> None:
        self.config = config
        self.mode = "hard"
        self.backend = "auto"
        self.balance: str | None = None
        self.layers: dict[int, FocusLayer] = {}
        self.handles: list[Any] = []
        self.ids: Tensor | None = None  # (B, T) of the forward pass, where it was given any
        self.extra: Tensor | None = None  # keys after its n-grams, once a layer has asked for them
        self.implementation: str = model.config._attn_implementation
        self.required_grad = {name: p.requires_grad for name, p in model.named_parameters()}

    def forget_ids(self, module: nn.Module, args: Any) -> None:
        """Before each forward pass of the model."""
        self.ids = self.extra = None

    def keep_ids(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Before its embedding: what that is asked for."""
        self.ids = args[0] if args else kwargs["input"]


def attach(model: PreTrainedModel, config: FocusConfig, seed: int | None = None) -> PreTrainedModel:
    """Adds routers to a model in place, freezes every original weight, and sets ``hard`` mode.

    Args:
        model: a transformers causal LM of a supported type (see ``focus.architectures``).
        config: what is routed and how.
        seed: of the routers' random initialisation; None uses torch's global generator.

    Returns:
        The same model.

    Raises:
        ValueError: the model is attached already or its architecture is not supported.
    """
    if not isinstance(config, FocusConfig):
        raise ValueError(f"config: must be a FocusConfig, got {type(config).__name__}")
    if getattr(model, "focus_state", None) is not None:
        raise ValueError("model: Focus is attached already; call focus.detach(model) first")
    layers = attention_layers(model)
    AttentionInterface.register(IMPLEMENTATION, attention)
    AttentionMaskInterface.register(IMPLEMENTATION, focus_mask)
    state = FocusState(config, model)
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    generator = None if seed is None else torch.Generator().manual_seed(seed)
    for layer in layers:
        _attach_layer(state, layer, generator)
    _watch_ids(state, model)
    model.__dict__["focus_state"] = state  # no module, no tensor: not for torch to register
    _set_mode(model, "hard")
    return model


def _watch_ids(state: FocusState, model: PreTrainedModel) -> None:
    """Has the state know the token ids of each forward pass. Its own methods are the hooks, so that
    a deep copy of the model gets hooks on a state of its own."""
    embedding = model.get_input_embeddings()
    state.handles += [
        model.base_model.register_forward_pre_hook(state.forget_ids),
        embedding.register_forward_pre_hook(state.keep_ids, with_kwargs=True),
    ]


def _attach_layer(state: FocusState, layer: AttentionLayer, generator: Any) -> None:
    router = None
    if not layer.local:
        router = Router(
            state.config, layer.hidden_size, layer.key_heads, generator, layer.query_heads
        )
        router.train(layer.module.training)
        layer.module.focus_router = router.to(next(layer.module.parameters()).device)
    focus_layer = FocusLayer(state, router)
    layer.module.__dict__["_focus_layer"] = focus_layer
    state.layers[layer.index] = focus_layer
    hook = layer.module.register_forward_pre_hook(focus_layer.observe, with_kwargs=True)
    state.handles.append(hook)


def detach(model: PreTrainedModel) -> PreTrainedModel:
    """Removes routers and hooks; weights, ``requires_grad`` flags and outputs are as before."""
    state = attached(model)
    _set_mode(model, "full")
    for handle in state.handles:
        handle.remove()
    for layer in attention_layers(model):
        if hasattr(layer.module, "focus_router"):
            del layer.module.focus_router
        del layer.module.__dict__["_focus_layer"]
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(state.required_grad[name])
    del model.__dict__["focus_state"]
    return model


def attached(model: PreTrainedModel) -> FocusState:
    """The model's Focus state.

    Raises:
        ValueError: Focus is not attached.
    """
    state = getattr(model, "focus_state", None)
    if not isinstance(state, FocusState):
        raise ValueError("model: Focus is not attached; call focus.attach(model, config) first")
    return state


class mode:  # noqa: N801 - reads as a verb: `with focus.mode(model, "soft"):`
    """Sets the model's mode at once; as a context manager, restores the former one on exit.

    ``soft``: the training gate, all pairs. ``hard``: the top-k mask. ``full``: the pretrained
    model, bit for bit.

    Args:
        model: an attached model.
        name: ``soft``, ``hard`` or ``full``.
        balance: overrides the config's balance meanwhile (``softmax``, ``sinkhorn``, ``causal``).
        top_k, probe, potentials, window, sinks, ngram, ngram_keys: override the config's, so that
            one set of routers can be read several ways.
        backend: of ``focus.focus_attention`` in hard mode.
        gate: overrides the config's training gate, so that training can go from one to another.
    """

    def __init__(self, model: PreTrainedModel, name: str, *, balance: str | None = None,
                 top_k: int | None = None, probe: str | None = None,
                 potentials: str | None = None, window: int | None = None,
                 sinks: int | None = None, backend: str | None = None,
                 gate: str | None = None, ngram: int | None = None,
                 ngram_keys: int | None = None) -> None:  # fmt: skip
        state = attached(model)
        self.model = model
        self.former = (state.mode, state.balance, state.backend, state.config)
        changes = {"top_k": top_k, "probe": probe, "potentials": potentials, "window": window,
                   "sinks": sinks, "gate": gate, "ngram": ngram,
                   "ngram_keys": ngram_keys}  # fmt: skip
        changed = state.config.replace(**{k: v for k, v in changes.items() if v is not None})
        if balance is not None:
            state.config.replace(balance=balance)  # refuses an unknown name
        _set_mode(model, name)
        state.balance = balance or state.balance
        state.backend = backend or state.backend
        state.config = changed

    def __enter__(self) -> PreTrainedModel:
        return self.model

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:  # fmt: skip
        state = attached(self.model)
        name, state.balance, state.backend, state.config = self.former
        _set_mode(self.model, name)


def _set_mode(model: PreTrainedModel, name: str) -> None:
    if name not in MODES:
        raise ValueError(f"mode: must be one of {', '.join(MODES)}, got {name!r}")
    state = attached(model)
    state.mode = name
    wanted = state.implementation if name == "full" else IMPLEMENTATION
    if model.config._attn_implementation != wanted:
        model.set_attn_implementation(wanted)


def trainable_parameters(model: PreTrainedModel) -> Iterator[nn.Parameter]:
    """The routers' parameters, layer by layer: all that requires grad on an attached model."""
    for layer in attached(model).layers.values():
        if layer.router is not None:
            yield from layer.router.parameters()


def density(model: PreTrainedModel) -> dict[int, float]:
    """Kept over causal pairs of the last forward pass: layer index -> share in (0, 1].

    Exact, counted over real tokens, batch and routings; 1.0 where every pair was computed
    (soft and full mode). Layers that stay local are left out.

    Raises:
        ValueError: Focus is not attached or no forward pass has run.
    """
    counted = pair_counts(model)
    return {index: 1.0 if c is None else c.density for index, c in counted.items()}


def memberships(model: PreTrainedModel) -> dict[int, Memberships]:
    """Groups of the tokens of the last hard forward pass: layer index -> (B, Hr, T, K) bool;
    of queries (B, H, T, K) where query heads have groups of their own.

    Raises:
        ValueError: Focus is not attached or no hard forward pass has run.
    """
    layers = {i: layer for i, layer in attached(model).layers.items() if layer.router is not None}
    found = {i: layer.memberships for i, layer in layers.items() if layer.memberships is not None}
    if len(found) != len(layers):
        raise ValueError("memberships: no hard forward pass has run; run the model once")
    return found


def pair_counts(model: PreTrainedModel) -> dict[int, PairCounts | None]:
    """Pairs of the last forward pass for each routed layer; None: every pair was computed."""
    state = attached(model)
    routed = {i: layer for i, layer in state.layers.items() if layer.router is not None}
    if any(layer.ran is None for layer in routed.values()):
        raise ValueError("density: no forward pass has run since attach; run the model once")
    return {index: _layer_counts(layer) for index, layer in routed.items()}


def _layer_counts(layer: FocusLayer) -> PairCounts | None:
    if layer.ran != "hard":
        return None
    if layer.counts is None and layer.kept is not None:
        layer.counts = PairCounts(*layer.kept.counts())
    elif layer.counts is None and layer.memberships is not None:
        config = layer.state.config
        layer.counts = count_pairs(
            *layer.memberships, config.window, config.sinks, layer.real, layer.extra
        )
    return layer.counts
