"""What ``attach`` leaves on a model, and the modes that hold in a thread."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Iterable
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel

from focus.architectures import AttentionLayer
from focus.call import IMPLEMENTATION, Mode, Record
from focus.config import FocusConfig
from focus.routing import Router

DEFAULT = "default"  # name of the adapter that ``attach`` makes


@dataclass(frozen=True)
class Adapter:
    """A config and the routers that go with it, by layer index."""

    config: FocusConfig
    routers: dict[int, Router]


# By model, the outermost first; of this thread (or task) alone.
modes: ContextVar[dict[int, tuple[Mode, ...]]] = ContextVar("focus_modes")


class FocusState:
    """What ``attach`` leaves on a model: its config, layers and how to undo it.

    Attributes:
        config: of the active adapter.
        adapters: all of the model's by name; active: which of them its modules hold.
        layers: every attention layer by index; local ones are not routed.
        implementation: the pretrained model's own attention implementation.
        last: what the last forward pass left behind.
        trained: what the steps of a training by Trainer run in (:class:`focus.FocusCallback`).
        threads: each ``with focus.mode(...)`` that is entered now, and the thread that did it.
    """

    trained: Mode | None = None

    def __init__(self, model: PreTrainedModel, layers: Iterable[AttentionLayer],
                 adapter: Adapter) -> None:  # fmt: skip
        self.config = adapter.config
        self.adapters = {DEFAULT: adapter}
        self.active = DEFAULT
        self.layers = {layer.index: layer for layer in layers}
        self.handles: list[Any] = []
        self.implementation: str = model.get_decoder().config._attn_implementation
        if self.implementation == IMPLEMENTATION:  # built from an attached model's config
            self.implementation = "sdpa" if model._supports_sdpa else "eager"
        self.required_grad = {plain(n): p.requires_grad for n, p in model.named_parameters()}
        self.last: Record | None = None
        self.threads: list[tuple[object, int]] = []
        self.told: set[str] = set()  # what it has warned of
        self.made: tuple[int, int] | None = None  # the first router as attach made it

    def __getstate__(self) -> dict[str, Any]:
        # what a pass has left, and a training under way, are of this process
        return {**self.__dict__, "last": None, "trained": None, "threads": []}

    @property
    def entered(self) -> bool:
        """Whether this thread has entered a mode of the model."""
        return bool(modes.get({}).get(id(self)))

    def runs(self, module: nn.Module) -> tuple[Mode, FocusConfig]:
        """How a forward pass of the decoder, or of a model around it, runs in this thread now: the
        mode, and the config with its changes."""
        now, training = self.mode, module.training and torch.is_grad_enabled()
        if self.trained is not None and training and not self.entered:
            now = self.trained
        return now, self.config.replace(**now.changes) if now.changes else self.config

    @property
    def mode(self) -> Mode:
        """The mode that this thread has entered last."""
        return (modes.get({}).get(id(self)) or (Mode(),))[-1]

    @property
    def interleaved(self) -> bool:
        """Whether some layers stay local."""
        return any(each.local for each in self.layers.values())

    @property
    def routers(self) -> dict[int, Router]:
        """Routers by layer index."""
        return {i: each.module.focus_router for i, each in self.layers.items() if not each.local}  # type: ignore[misc]

    def reconfigure(self, config: FocusConfig) -> None:
        """Another config for the active adapter, whose routers stay."""
        for router in self.routers.values():
            router.config = config
        self.adapters[self.active] = Adapter(config, self.routers)
        self.config = config
        self.told.discard("stale")

    def check(self, decoder: nn.Module) -> None:
        """Refuses a forward pass under another attention implementation, set since ``attach``."""
        name = decoder.config._attn_implementation  # type: ignore[union-attr]
        if name != IMPLEMENTATION:
            raise ValueError(
                f"attn_implementation: is {name!r}, set after focus.attach, so Focus would not "
                f"run; model.set_attn_implementation({IMPLEMENTATION!r}) sets it back"
            )

    def check_trainable(self, config: FocusConfig) -> None:
        """Before a forward pass in soft mode with gradients: refuses routers that would not learn,
        and warns of what is learnt in vain."""
        self.made = None  # from now on they may learn: fused optimisers leave no count of writes
        routers = self.routers.values()
        if not any(p.requires_grad for router in routers for p in router.parameters()):
            raise ValueError(
                "routers: none requires grad (peft freezes what it does not know), so they would "
                "not learn in soft mode; call focus.trainable_parameters(model), which unfreezes "
                "them, or train other adapters in hard mode"
            )
        learning = all(router.training for router in routers)
        shares_out = any(few < most for router in routers for few, most in router.spread)
        if learning and shares_out:
            self._warn_once(
                "stale",
                "groups were shared out among heads for the routers as they are, and this training "
                "changes them; after it call focus.find_heavy_hitters and focus.allocate_groups "
                "again",
            )
        if not learning and config.balance == "causal":
            warnings.warn(
                "the routers are in evaluation mode: a training step leaves their potentials as "
                "they are, so groups are not kept from collapsing; call model.train() first",
                stacklevel=2,
            )

    def _warn_once(self, about: str, text: str) -> None:
        if about not in self.told:
            self.told.add(about)
            warnings.warn(text, stacklevel=3)

    def first_router(self) -> tuple[int, int] | None:
        """Which it is, and how often its centroids were written to."""
        router = next(iter(self.routers.values()), None)
        centroids = None if router is None else router._parameters.get("centroids")
        if centroids is None or centroids.is_inference():
            return None
        return id(router), centroids._version

    def warn_of_untrained(self, tokens: int, window: int) -> None:
        """Warns, once a model, of a text beyond the window under routers that are still random."""
        if self.made is None or tokens <= window or torch.compiler.is_compiling():
            return
        untouched, self.made = self.first_router() == self.made, None
        if untouched:
            warnings.warn(
                "the routers are as focus.attach made them, at random, so hard mode drops distant "
                "tokens at random; train them first (docs/train.md), or call focus.load_adapter",
                stacklevel=2,
            )

    def warn_of_short(self, tokens: int, window: int) -> None:
        """Warns, once a model, of a training pass over texts without a pair that the gate sees."""
        if 0 < tokens <= window:
            self._warn_once(
                "short",
                f"this batch has {tokens} tokens and the window holds {window}: no pair is "
                "distant, so the routers learn nothing from it; train on longer texts (ours had "
                "2,048 tokens), or with a smaller window",
            )

    def warn_of_thread(self) -> None:
        """Warns, once a model, of a forward pass without a mode while another thread is in one."""
        here = threading.get_ident()
        if any(thread != here for _, thread in self.threads):
            self._warn_once(
                "thread",
                "another thread has entered a focus.mode of this model, which this one does not "
                "inherit, so it runs in hard mode; start it by contextvars.copy_context().run (see "
                "focus.mode), or enter focus.mode(model, 'hard') here if that is meant",
            )

    def warn_without_gate(self, decoder: nn.Module, mode: str) -> None:
        """Warns, once a model, of a forward pass in training mode that no parameter learns from."""
        if "gate" in self.told:  # before all parameters are looked through
            return
        own = {id(p) for router in self.routers.values() for p in router.parameters()}
        if any(p.requires_grad and id(p) not in own for p in decoder.parameters()):
            self.told.add("gate")
            return
        self._warn_once(
            "gate",
            f"the model is in training mode, and only its routers can learn, which {mode} mode "
            "does not teach: train inside `with focus.mode(model, 'soft'):`, or give Trainer "
            "callbacks=[FocusCallback()] (from focus.trainer); call model.eval() for anything else",
        )


def plain(name: str) -> str:
    """A parameter's name as it is without peft's layers."""
    return name.replace(".base_layer.", ".")


def transformers_model(model: nn.Module) -> PreTrainedModel:
    """The transformers model, also inside wrappers (peft, DistributedDataParallel, torch.compile);
    refuses what has none."""
    if not isinstance(model, nn.Module):
        raise ValueError(
            f"model: must be a transformers model, got {model!r}; load it first, with "
            "AutoModelForCausalLM.from_pretrained, say"
        )
    for module in model.modules():
        if isinstance(module, PreTrainedModel):
            return module
    raise ValueError(
        f"model: {type(model).__name__} is not supported; Focus attaches to transformers models"
    )


def refuse_routers(inner: PreTrainedModel) -> None:
    """Refuses a model that Focus is on a part of, or that is a part of such a one."""
    if any("focus_router" in module._modules for module in inner.modules()):
        raise ValueError("model: Focus is attached to a part of this model, or to a model around "
                         "it; use that one, or call focus.detach on it first")  # fmt: skip


def attached(model: nn.Module) -> FocusState:
    """The model's Focus state; refuses a model that Focus is not attached to."""
    inner = transformers_model(model)
    state = inner.__dict__.get("focus_state")
    if not isinstance(state, FocusState):
        refuse_routers(inner)
        raise ValueError("model: Focus is not attached; call focus.attach(model, config) first")
    return state


def attached_whole(model: nn.Module) -> FocusState:
    """The same; refuses a model that layers were taken out of since."""
    state, inner = attached(model), transformers_model(model)
    here = {id(module) for module in inner.modules()}
    count = inner.config.get_text_config(decoder=True).num_hidden_layers  # so many are run
    gone = [index for index, layer in state.layers.items()
            if id(layer.module) not in here or index >= count]  # fmt: skip
    if gone:
        raise ValueError(
            f"model: layers {gone[:4]} were taken out of it after focus.attach; call "
            "focus.detach(model), set model.config.num_hidden_layers, and attach again"
        )
    return state
