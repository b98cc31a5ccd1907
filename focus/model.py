"""Focus on a transformers causal language model: attach, mode, density, detach.

Routers are submodules of the attention modules, so that devices, shards and optimisers find them; a
hook on the decoder makes a snapshot of the settings for each forward pass (:mod:`focus.hooks`), and
a registered attention function routes and attends (:mod:`focus.interface`). In ``full`` mode the
model's own attention function runs: its outputs are the pretrained model's, bit for bit.

Shape suffixes: B batch, T tokens, H query heads, Hr routers (1, or the key heads), K groups.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from types import TracebackType
from typing import Any, TypeVar

import torch
from torch import nn
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel

from focus.architectures import AttentionLayer, attention_layers, probe
from focus.call import IMPLEMENTATION, Record, Settings, Tap
from focus.config import FocusConfig
from focus.density import PairCounts
from focus.hooks import DecoderHook, LayerHook
from focus.interface import attention
from focus.masks import focus_mask
from focus.named import DEFAULT, Adapter, activate, new_routers, refuse_sharded
from focus.routing import Memberships, Router

MODES = ("soft", "hard", "full")
AnyModel = TypeVar("AnyModel", bound=nn.Module)

# At import, so that a model that was attached in another process finds them.
AttentionInterface.register(IMPLEMENTATION, attention)
AttentionMaskInterface.register(IMPLEMENTATION, focus_mask)

# What `with focus.mode(...)` sets, by model; of this thread (or task) alone.
_modes: ContextVar[dict[int, Settings]] = ContextVar("focus_modes")


class FocusState:
    """What ``attach`` leaves on a model: its config, layers and how to undo it.

    Attributes:
        config: of the active adapter.
        adapters: all of the model's by name; active: which of them its modules hold.
        layers: every attention layer by index; local ones are not routed.
        implementation: the pretrained model's own attention implementation.
        last: what the last forward pass left behind.
    """

    def __init__(self, config: FocusConfig, model: PreTrainedModel) -> None:
        self.config = config
        self.adapters: dict[str, Adapter] = {}
        self.active = DEFAULT
        self.layers: dict[int, AttentionLayer] = {}
        self.handles: list[Any] = []
        self.implementation: str = model.config._attn_implementation
        self.required_grad = {name: p.requires_grad for name, p in model.named_parameters()}
        self.last: Record | None = None

    @property
    def settings(self) -> Settings:
        """The innermost ``focus.mode`` of this thread, else hard mode with the config."""
        found = _modes.get({}).get(id(self))
        return Settings("hard", self.config) if found is None else found

    @property
    def interleaved(self) -> bool:
        """Whether some layers stay local."""
        return any(each.local for each in self.layers.values())

    @property
    def routers(self) -> dict[int, Router]:
        """Routers by layer index."""
        return {i: each.module.focus_router for i, each in self.layers.items() if not each.local}  # type: ignore[misc]

    def check(self, decoder: nn.Module) -> None:
        """Before a forward pass.

        Raises:
            ValueError: something has set another attention implementation since ``attach``.
        """
        name = decoder.config._attn_implementation  # type: ignore[union-attr]
        if name != IMPLEMENTATION:
            raise ValueError(
                f"attn_implementation: is {name!r}, set after focus.attach, so Focus would not "
                f"run; model.set_attn_implementation({IMPLEMENTATION!r}) sets it back, "
                "focus.mode(model, 'full') gives the pretrained model"
            )

    def check_trainable(self, decoder: nn.Module) -> None:
        """Before a forward pass in soft mode with gradients.

        Raises:
            ValueError: the routers would not learn.
        """
        routers = self.routers.values()
        if not any(p.requires_grad for router in routers for p in router.parameters()):
            raise ValueError(
                "routers: none requires grad (peft freezes what it does not know), so they would "
                "not learn in soft mode; call focus.trainable_parameters(model), which unfreezes "
                "them, or train other adapters in hard mode"
            )
        if not decoder.training and self.settings.config.balance == "causal":
            warnings.warn(
                "the model is in evaluation mode: a training step leaves the routers' potentials "
                "as they are, so groups are not kept from collapsing; call model.train() first",
                stacklevel=2,
            )


def attach(model: AnyModel, config: FocusConfig, seed: int | None = None) -> AnyModel:
    """Adds routers to a model in place, freezes every original weight, and sets ``hard`` mode.

    Args:
        model: a transformers causal LM (see ``focus.architectures``), also one that peft wraps:
            the parameters of its adapters keep their ``requires_grad``.
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
    layers = attention_layers(inner)
    refuse_sharded(layers)
    probe(inner)
    state = FocusState(config, inner)
    _own_config(inner)
    adapters = _adapter_parameters(inner)
    for parameter in inner.parameters():
        if id(parameter) not in adapters:
            parameter.requires_grad_(False)
    generator = None if seed is None else torch.Generator().manual_seed(seed)
    state.layers = {layer.index: layer for layer in layers}
    for index, layer in state.layers.items():
        hook = layer.module.register_forward_pre_hook(LayerHook(index), with_kwargs=True)
        state.handles.append(hook)
    state.adapters[DEFAULT] = Adapter(config, new_routers(config, layers, generator))
    activate(state, DEFAULT)
    decoder_hook = DecoderHook(state)
    decoder = inner.get_decoder()
    state.handles += [
        decoder.register_forward_pre_hook(decoder_hook.begin, with_kwargs=True, prepend=True),
        decoder.register_forward_hook(decoder_hook.end, always_call=True),
    ]
    inner.__dict__["focus_state"] = state  # no module, no tensor: not for torch to register
    inner.set_attn_implementation(IMPLEMENTATION)
    return model


def _own_config(model: PreTrainedModel) -> None:
    """Gives the model a config of its own: two models may have been built from one object."""
    former = model.config
    own = copy.deepcopy(former)
    for module in model.modules():
        if module.__dict__.get("config") is former:
            module.config = own


def _adapter_parameters(model: nn.Module) -> set[int]:
    """Of peft's layers: their parameters beside the base layer's."""
    found: set[int] = set()
    for module in model.modules():
        if hasattr(module, "base_layer") and hasattr(module, "adapter_layer_names"):
            base = {id(p) for p in module.base_layer.parameters()}
            found |= {id(p) for p in module.parameters()} - base
    return found


def detach(model: AnyModel) -> AnyModel:
    """Removes routers and hooks; weights, ``requires_grad`` flags and outputs are as before.

    Parameters that came after ``attach`` (an adapter of peft) are left as they are.
    """
    state, inner = attached(model), transformers_model(model)
    for handle in state.handles:
        handle.remove()
    for layer in state.layers.values():
        if not layer.local:
            del layer.module.focus_router
    for name, parameter in inner.named_parameters():
        before = state.required_grad.get(name.replace(".base_layer.", "."))
        if before is not None:
            parameter.requires_grad_(before)
    del inner.__dict__["focus_state"]
    inner.set_attn_implementation(state.implementation)
    return model


def transformers_model(model: nn.Module) -> PreTrainedModel:
    """The transformers model, also inside wrappers (peft, DistributedDataParallel, torch.compile).

    Raises:
        ValueError: there is none.
    """
    for module in model.modules():
        if isinstance(module, PreTrainedModel):
            return module
    raise ValueError(
        f"model: {type(model).__name__} is not supported; Focus attaches to transformers models"
    )


def attached(model: nn.Module) -> FocusState:
    """The model's Focus state.

    Raises:
        ValueError: Focus is not attached.
    """
    state = transformers_model(model).__dict__.get("focus_state")
    if not isinstance(state, FocusState):
        raise ValueError("model: Focus is not attached; call focus.attach(model, config) first")
    return state


class mode:  # noqa: N801 - reads as a verb: `with focus.mode(model, "soft"):`
    """As a context manager, has the model run in a mode; nothing is set on the model itself.

    ``soft``: the training gate, all pairs. ``hard``: the top-k mask, which is what holds outside of
    any ``with``. ``full``: the pretrained model, bit for bit.

    The mode holds for the thread that entered it. A thread started inside does not inherit it: give
    it the context (``Thread(target=contextvars.copy_context().run, args=(model.generate, ...))``).

    Args:
        model: an attached model.
        name: ``soft``, ``hard`` or ``full``.
        backend: of ``focus.focus_attention`` in hard mode.
        tap: called with the index, hidden states (B, T, E), queries (B, H, T, D) and keys
            (B, Hk, T, D) of each routed layer.
        changes: fields of the config in place of its own (``top_k``, ``probe``, ``window``,
            ``sinks``, ``gate``, ``balance``, ``temperature``, ``ngram``, ``ngram_keys``), so that
            one set of routers can be read several ways.

    Raises:
        ValueError: unknown names, or what the routers cannot do (another number of groups, say).
    """

    def __init__(self, model: nn.Module, name: str, *, backend: str | None = None,
                 tap: Tap | None = None, **changes: Any) -> None:  # fmt: skip
        self.used = True  # until it is ready to be
        self.state = attached(model)
        self.entered: list[Callable[[], None]] = []
        if name not in MODES:
            raise ValueError(f"mode: must be one of {', '.join(MODES)}, got {name!r}")
        fixed = [each for each in changes if each in FIXED]
        if fixed:
            raise ValueError(f"{fixed[0]}: belongs to the routers and cannot be changed by a mode")
        outer = self.state.settings
        config = outer.config.replace(**{k: v for k, v in changes.items() if v is not None})
        self.model = model
        self.settings = Settings(name, config, backend or outer.backend, tap or outer.tap)
        self.used = False

    def __enter__(self) -> nn.Module:
        self.used = True
        token = _modes.set({**_modes.get({}), id(self.state): self.settings})
        self.entered.append(lambda: _modes.reset(token))
        return self.model

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:  # fmt: skip
        self.entered.pop()()

    def __del__(self) -> None:
        if not getattr(self, "used", True):
            warnings.warn("focus.mode: has no effect by itself; write `with focus.mode(...):`",
                          stacklevel=2)  # fmt: skip


FIXED = ("num_groups", "routing_dim", "routers", "sinkhorn_iterations")


def trainable_parameters(model: nn.Module) -> Iterator[nn.Parameter]:
    """The routers' parameters, layer by layer; those that something has frozen since ``attach``
    (as peft does) require grad again."""
    for router in attached(model).routers.values():
        yield from (parameter.requires_grad_() for parameter in router.parameters())


def density(model: nn.Module) -> dict[int, float]:
    """Kept over causal pairs of the last forward pass: layer index -> share in (0, 1].

    Exact, counted over real tokens, batch and routings; 1.0 where every pair was computed
    (soft and full mode). Layers that stay local are left out.

    Raises:
        ValueError: Focus is not attached or no forward pass has run.
    """
    counted = pair_counts(model)
    return {index: 1.0 if c is None else c.density for index, c in counted.items()}


def memberships(model: nn.Module) -> dict[int, Memberships]:
    """Groups of the tokens of the last hard forward pass: layer index -> (B, Hr, T, K) bool;
    of queries (B, H, T, K) where query heads have groups of their own.

    Raises:
        ValueError: Focus is not attached or no hard forward pass has run.
    """
    state = attached(model)
    layers = {} if state.last is None else state.last.layers
    found = {i: layers[i].memberships for i in state.routers if i in layers}
    if len(found) != len(state.routers) or None in found.values():
        raise ValueError("memberships: no hard forward pass has run; run the model once")
    return {i: each for i, each in found.items() if each is not None}


def pair_counts(model: nn.Module) -> dict[int, PairCounts | None]:
    """Pairs of the last forward pass for each routed layer; None: every pair was computed."""
    state = attached(model)
    if state.last is None:
        raise ValueError("density: no forward pass has run since attach; run the model once")
    layers = state.last.layers
    return {i: layers[i].pairs if i in layers else None for i in state.routers}
