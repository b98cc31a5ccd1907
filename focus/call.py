"""What travels with one forward pass: its settings and token ids, down to every attention layer.

A pre-hook on the decoder makes one :class:`Call`, a snapshot that the model's own keyword arguments
carry to its attention modules; a pre-hook on each adds the layer's hidden states. Nothing about a
pass is kept on the model, so that threads, nested modes, exceptions half-way and the second forward
pass of gradient checkpointing cannot mix two passes up.

Shape suffixes: B batch, T tokens, E model dimension, M new tokens, N further keys.
"""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from focus.cache import FocusCacheLayer, adopt, release
from focus.config import FocusConfig
from focus.density import PairCounts
from focus.routing import Memberships, Router

if TYPE_CHECKING:
    from focus.model import FocusState

KEYWORD = "focus_call"  # of the model's own keyword arguments
IMPLEMENTATION = "focus"  # the attention implementation's name in transformers

Tap = Callable[[int, Tensor, Tensor, Tensor], None]


@dataclass(frozen=True)
class Settings:
    """How a model runs: what :class:`focus.mode` sets.

    mode: ``soft``, ``hard`` or ``full``; backend: of :func:`focus.focus_attention`; tap: shown the
    index, hidden states, queries and keys of every routed layer's call.
    """

    mode: str
    config: FocusConfig
    backend: str = "auto"
    tap: Tap | None = None


@dataclass
class LayerRecord:
    """What one layer's call in hard mode leaves behind: memberships, the padding (B, T) and further
    keys (B, T, N) that go with them; pairs are counted when somebody asks."""

    memberships: Memberships
    count: Callable[[], PairCounts]

    @cached_property
    def pairs(self) -> PairCounts:
        """Pairs of the call."""
        return self.count()


@dataclass
class Record:
    """What a forward pass leaves behind; written by its layers, read when it is over.

    layers: of those that have run in hard mode; learned: whose potentials have taken this batch in
    (a layer that gradient checkpointing runs again must not do so twice); further: the keys found
    word for word (B, M, N), the same in every layer.
    """

    layers: dict[int, LayerRecord] = field(default_factory=dict)
    learned: set[int] = field(default_factory=set)
    further: Tensor | None = None


@dataclass(frozen=True, eq=False)
class Call:
    """One forward pass of the model: its settings, token ids (B, M) or None, and its record."""

    settings: Settings
    ids: Tensor | None
    implementation: str  # the pretrained model's own
    interleaved: bool  # some layers have a sliding window and stay as they are
    record: Record = field(default_factory=Record)


@dataclass(frozen=True, eq=False)
class LayerCall:
    """The same for one attention layer: its index, router, hidden states (B, M, E) and cache."""

    call: Call
    index: int
    router: Router | None
    hidden: Tensor
    cache: FocusCacheLayer | None


_running: ContextVar[Call | None] = ContextVar("focus_running", default=None)


def running() -> Call | None:
    """The forward pass that is under way in this thread, for what has no keyword arguments."""
    return _running.get()


class DecoderHook:
    """On the decoder: begins a call, and ends it."""

    def __init__(self, state: FocusState) -> None:
        self.state = state

    def begin(self, module: nn.Module, args: tuple[Any, ...],
              kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:  # fmt: skip
        """Forward pre-hook."""
        self.state.check(module)
        ids = args[0] if args else kwargs.get("input_ids")
        settings = self.state.settings
        call = Call(settings, ids, self.state.implementation, self.state.interleaved)
        if settings.mode == "soft" and torch.is_grad_enabled():
            self.state.check_trainable(module)
        _running.set(call)
        return args, {**kwargs, KEYWORD: call}

    def end(self, module: nn.Module, args: Any, output: Any) -> None:
        """Forward hook, also after an error."""
        call = _running.get()
        _running.set(None)
        if call is not None:
            self.state.last = call.record


class LayerHook:
    """On an attention module: its hidden states and cache go along with the call."""

    def __init__(self, index: int) -> None:
        self.index = index

    def __call__(self, module: nn.Module, args: tuple[Any, ...],
                 kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:  # fmt: skip
        """Forward pre-hook."""
        call = kwargs.get(KEYWORD)
        if call is None:
            raise ValueError(
                f"{type(module).__name__}: was called outside its model's forward pass, which says "
                "how it is to attend; call the model, or focus.detach(model) first"
            )
        hidden = args[0] if args else kwargs["hidden_states"]
        if hidden.shape[1] == 0:
            raise ValueError("input_ids: no tokens; give at least one")
        router = getattr(module, "focus_router", None)
        cache, place = kwargs.get("past_key_values"), None
        if cache is not None and router is not None:
            if call.settings.mode == "hard":
                place = adopt(cache, self.index)
            else:
                release(cache, self.index)
        own = LayerCall(call, self.index, router, hidden, place)
        return args, {**kwargs, KEYWORD: own}


