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
from focus.attention import focus_attention
from focus.attention.dense import attend, pairs_kept
from focus.config import FocusConfig
from focus.density import PairCounts, count_masked_pairs, count_pairs
from focus.gating import gated_attention
from focus.masks import focus_mask, read_mask
from focus.routing import Assignments, Memberships, Router

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
        self.implementation: str = model.config._attn_implementation
        self.required_grad = {name: p.requires_grad for name, p in model.named_parameters()}


class FocusLayer:
    """One attention module's router and what it saw in the last forward pass.

    ``counts`` is None before the first forward; in soft and full mode every pair is computed.
    """

    def __init__(self, state: FocusState, router: Router | None) -> None:
        self.state = state
        self.router = router
        self.hidden: Tensor | None = None
        self.memberships: Memberships | None = None
        self.real: Tensor | None = None
        self.counts: PairCounts | None = None
        self.ran: str | None = None

    def observe(self, _module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Forward pre-hook: keeps the layer's input for the attention function."""
        self.ran = self.state.mode
        if self.state.mode == "full":
            return
        self.hidden = args[0] if args else kwargs["hidden_states"]
        if self.hidden.shape[1] == 0:
            raise ValueError("input_ids: no tokens; give at least one")

    def take_hidden(self) -> Tensor:
        """The layer's input (B, T, E), released so that it does not outlive the forward pass."""
        if self.hidden is None:
            raise RuntimeError("the attention function ran without its module's forward pre-hook")
        hidden, self.hidden = self.hidden, None
        return hidden


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
    AttentionInterface.register(IMPLEMENTATION, _attention)
    AttentionMaskInterface.register(IMPLEMENTATION, focus_mask)
    state = FocusState(config, model)
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    generator = None if seed is None else torch.Generator().manual_seed(seed)
    for layer in layers:
        _attach_layer(state, layer, generator)
    model.__dict__["focus_state"] = state  # no module, no tensor: not for torch to register
    _set_mode(model, "hard")
    return model


def _attach_layer(state: FocusState, layer: AttentionLayer, generator: Any) -> None:
    router = None
    if not layer.local:
        router = Router(state.config, layer.hidden_size, layer.key_heads, generator)
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
        top_k, probe, potentials: override the config's, so that one set of routers can be read
            several ways.
        backend: of ``focus.focus_attention`` in hard mode.
    """

    def __init__(self, model: PreTrainedModel, name: str, *, balance: str | None = None,
                 top_k: int | None = None, probe: str | None = None,
                 potentials: str | None = None,
                 backend: str | None = None) -> None:  # fmt: skip
        state = attached(model)
        self.model = model
        self.former = (state.mode, state.balance, state.backend, state.config)
        changes = {"top_k": top_k, "probe": probe, "potentials": potentials}
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

    Exact, counted over real tokens, batch and key heads; 1.0 where every pair was computed
    (soft and full mode). Layers that stay local are left out.

    Raises:
        ValueError: Focus is not attached or no forward pass has run.
    """
    counted = pair_counts(model)
    return {index: 1.0 if c is None else c.density for index, c in counted.items()}


def memberships(model: PreTrainedModel) -> dict[int, Memberships]:
    """Groups of the tokens of the last hard forward pass: layer index -> (B, Hr, T, K) bool.

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
    if layer.counts is None and layer.memberships is not None:
        config = layer.state.config
        layer.counts = count_pairs(*layer.memberships, config.window, config.sinks, layer.real)
    return layer.counts


def _attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    softcap: float | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """transformers' attention function: query (B, H, T, D) in, (B, T, H, D) out."""
    layer: FocusLayer | None = getattr(module, "_focus_layer", None)
    if layer is None:
        raise ValueError(
            f"{type(module).__name__}: attention implementation 'focus' is set but Focus is not "
            "attached to this module; call focus.attach(model, config)"
        )
    _refuse(kwargs, query, key)
    hidden = layer.take_hidden()
    real, pairs = read_mask(attention_mask, query.shape[2], key.shape[2])
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    call = _Call(layer, query, key, value, scale, real, pairs, softcap, dropout)
    if layer.router is None:
        out = call.local()
    elif layer.state.mode == "soft":
        out = call.soft(hidden)
    else:
        out = call.hard(hidden)
    return out.transpose(1, 2).contiguous(), None


def _refuse(kwargs: dict[str, Any], query: Tensor, key: Tensor) -> None:
    if key.shape[2] != query.shape[2]:
        raise NotImplementedError(
            f"{query.shape[2]} queries over {key.shape[2]} keys: Focus does not continue from a "
            "key/value cache; pass the whole sequence with use_cache=False, or use "
            "focus.mode(model, 'full')"
        )
    if kwargs.get("output_attentions"):
        raise ValueError("output_attentions: Focus forms no attention matrix; leave it off")
    if kwargs.get("position_bias") is not None:
        raise ValueError("position_bias: not supported by Focus")


class _Call:
    """One layer's attention call: the tensors, the masks and the model's own peculiarities."""

    def __init__(self, layer: FocusLayer, query: Tensor, key: Tensor, value: Tensor, scale: float,
                 real: Tensor | None, pairs: Tensor | None, softcap: float | None,
                 dropout: float) -> None:  # fmt: skip
        self.layer, self.state = layer, layer.state
        self.query, self.key, self.value, self.scale = query, key, value, scale
        self.real, self.pairs, self.softcap, self.dropout = real, pairs, softcap, dropout

    @property
    def router(self) -> Router:
        if self.layer.router is None:
            raise RuntimeError("a local layer has no router")
        return self.layer.router

    def local(self) -> Tensor:
        """A layer that stays as it is: causal, its own window, padding, soft-cap."""
        everything = self.query.new_ones(self.query.shape[0], 1, self.query.shape[2], 1).bool()
        return self._dense(Memberships(everything, None))

    def soft(self, hidden: Tensor) -> Tensor:
        assignments: Assignments = self.router(
            hidden, self.real, self.state.balance, self.state.config
        )
        return gated_attention(
            self.query, self.key, self.value, assignments, self.state.config, scale=self.scale,
            real=self.real, pair_mask=self.pairs, softcap=self.softcap, dropout=self.dropout,
        )  # fmt: skip

    def hard(self, hidden: Tensor) -> Tensor:
        config = self.state.config
        with torch.no_grad():
            logits = self.router.balanced_logits(hidden, self.real, self.state.balance, config)
            found = self.router.memberships(logits, config)
        self.layer.memberships, self.layer.real, self.layer.counts = found, self.real, None
        # Only the definition knows a soft-cap, a model's own window or attention dropout.
        if self.pairs is not None or self.softcap is not None or self.dropout:
            return self._dense(found)
        return focus_attention(
            self.query, self.key, self.value, found.query, window=config.window,
            sinks=config.sinks, scale=self.scale, key_padding_mask=self.real,
            key_membership=found.key, backend=self.state.backend,
        )  # fmt: skip

    def _dense(self, found: Memberships) -> Tensor:
        config = self.state.config
        key_groups = found.query if found.key is None else found.key
        kept = pairs_kept(found.query, key_groups, config.window, config.sinks, self.real)
        if self.pairs is not None:
            kept = kept & self.pairs
            self.layer.counts = count_masked_pairs(kept, config.window, config.sinks, self.real)
        return attend(self.query, self.key, self.value, self.scale, kept=kept,
                      softcap=self.softcap, dropout=self.dropout)  # fmt: skip
