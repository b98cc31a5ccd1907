"""Hooks on an attached model: what makes a :class:`focus.call.Call`, and hands it on.

Classes, not closures, so that a model with hooks can be copied and pickled.

Shape suffixes: B batch, M new tokens, E model dimension.
"""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from focus.cache import adopt, release
from focus.cache_layer import FocusCacheLayer
from focus.call import KEYWORD, Call, alive, running
from focus.masks import refuse_keywords, refuse_one_row
from focus.positions import refuse_positions
from focus.routing import Router
from focus.state import FocusState

# What models and attention modules call it: from transformers 5.24 on, before, and in GPT-NeoX.
CACHE = ("cache", "past_key_values", "layer_past")
NO_GRADIENT = {  # by mode
    "hard": "loss: comes from hard mode, which has no gradient for the routers, and nothing else "
            'requires grad; train inside `with focus.mode(model, "soft"):`, or give Trainer '
            "callbacks=[FocusCallback()] (from focus.trainer)",
    "soft": "loss: no gradient leads from it to the routers: layers above them pass none on "
            "(weights quantised for inference, say); load the model in another format to train "
            "them",
}  # fmt: skip


def cache_of(kwargs: dict[str, Any]) -> Any:
    """The cache that a call is given, or None."""
    for name in CACHE:
        if (cache := kwargs.get(name)) is not None:
            return cache
    return None


@dataclass(eq=False, slots=True)
class LayerCall:
    """A call as one attention layer gets it: its index, router, hidden states (B, M, E), cache."""

    call: Call
    index: int
    router: Router | None
    hidden: Tensor
    cache: FocusCacheLayer | None


class ModelHook:
    """On the decoder, and on models around it that build its masks: begins a call, and ends it."""

    def __init__(self, state: FocusState, decoder: nn.Module) -> None:
        self.state, self.decoder = state, decoder
        self.names = tuple(inspect.signature(type(decoder).forward).parameters)[1:]  # without self

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(state["state"], state["decoder"])  # type: ignore[misc]

    def begin_around(self, module: nn.Module, args: tuple[Any, ...],
                     kwargs: dict[str, Any]) -> None:  # fmt: skip
        """Forward pre-hook of a model around the decoder."""
        self._begun(module, args, kwargs)

    def begin(self, module: nn.Module, args: tuple[Any, ...],
              kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:  # fmt: skip
        """Forward pre-hook of the decoder."""
        self.state.check(module)
        self._check_thread(module)
        call = self._begun(module, args, kwargs)
        mode, config = call.mode.name, call.config
        named = {**dict(zip(self.names, args, strict=False)), **kwargs}
        given = named.get("inputs_embeds") if call.ids is None else call.ids
        if mode != "full":
            self._refuse(module, given, named)
        if module.training and torch.is_grad_enabled() and mode != "soft":
            self.state.warn_without_gate(module, mode)
        if mode == "hard" and isinstance(given, Tensor):
            self.state.warn_of_untrained(given.shape[1], config.window)
        if mode == "soft" and torch.is_grad_enabled():
            self.state.check_trainable(config)
            if module.training and isinstance(given, Tensor):
                self.state.warn_of_short(given.shape[1], config.window)
        if isinstance(kwargs.get("logits_to_keep"), int):
            # Gemma-4 drops queries ahead of the layers that share keys: masks then stand askew.
            kwargs = {**kwargs, "logits_to_keep": 0}
        return args, {**kwargs, KEYWORD: call}

    def _check_thread(self, module: nn.Module) -> None:
        if self.state.entered or self.state.trained is not None:
            return
        if getattr(module, "_is_replica", False):
            raise ValueError(
                "DataParallel: its threads do not see the mode that another has entered; use "
                "DistributedDataParallel, or one device"
            )
        if self.state.threads:
            self.state.warn_of_thread()

    @staticmethod
    def _refuse(module: nn.Module, given: Any, kwargs: dict[str, Any]) -> None:
        if torch.jit.is_tracing():
            raise ValueError(
                "torch.jit.trace: would keep the pairs of this very text for every other; use "
                "torch.compile, or trace inside focus.mode(model, 'full')"
            )
        if isinstance(given, Tensor) and given.dim() > 1:
            if 0 in given.shape[:2]:
                raise ValueError("input_ids: no tokens; give at least one sequence of at least one")
            refuse_one_row(kwargs.get("attention_mask"), given.shape[1])
        cache = cache_of(kwargs)
        seen = 0 if cache is None else cache.get_seq_length()
        refuse_positions(kwargs, seen)
        refuse_keywords({"output_attentions": getattr(module.config, "output_attentions", False)})

    def _begun(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call:
        """The pass that a model around this one has begun, or a new one."""
        state, outer = self.state, alive()
        if outer is not None and outer.hook is self and outer.module not in (self.decoder, module):
            return outer
        ids = args[0] if args else kwargs.get("input_ids")
        call = Call(*state.runs(module), ids, state.implementation, state.interleaved, self, module,
                    outer)  # fmt: skip
        running.set(call)
        return call

    def end(self, module: nn.Module, args: Any, output: Any) -> None:
        """Forward hook, also after an error."""
        call = running.get()
        if call is not None and call.hook is self and call.module is module:
            running.set(call.outer)
            if output is not None:  # a pass that failed has counted some of its layers alone
                self.state.last = call.record


def pack_states(module: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...] | None:
    """Forward pre-hook of the output embeddings: a slice of the hidden states becomes a tensor of
    its own. Of a slice and frozen weights torch multiplies batch by batch, by a copy of them,
    which in bfloat16 takes longer than a short text."""
    hidden = args[0] if args else None
    if not isinstance(hidden, Tensor) or hidden.dim() != 3:
        return None
    if hidden.stride(0) == hidden.shape[1] * hidden.stride(1):
        return None
    return hidden.clone(memory_format=torch.contiguous_format), *args[1:]


class LossHook:
    """On the whole model: has ``backward()`` of a loss that nothing can learn from say why."""

    def __init__(self, state: FocusState) -> None:
        self.state = state

    def __call__(self, module: nn.Module, args: Any, output: Any) -> None:
        """Forward hook."""
        loss = getattr(output, "loss", None)
        if not isinstance(loss, Tensor) or loss.requires_grad or not torch.is_grad_enabled():
            return
        if torch.compiler.is_compiling():  # it would have to know the backward pass ahead
            return
        mode = self.state.runs(module)[0].name
        if told := NO_GRADIENT.get(mode):
            # In training no leaf: trainers divide it in place.
            leaf = torch.zeros_like(loss) if module.training else loss
            leaf.requires_grad_().register_hook(partial(_refuse_gradient, told))
            if module.training:
                loss.add_(leaf)


def _refuse_gradient(told: str, gradient: Tensor) -> None:
    raise RuntimeError(told)


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
        router = module._modules.get("focus_router")  # a step has no time for getattr
        if router is not None and not isinstance(router, Router):
            raise ValueError(
                f"focus_router: was wrapped in {type(router).__name__} (peft's modules_to_save?), "
                "whose copy Focus would not save; leave it out there: focus.trainable_parameters "
                "and focus.save_adapter are for the routers"
            )
        cache, place = cache_of(kwargs), None
        if cache is not None and router is not None:
            if call.mode.name == "hard":
                place = adopt(cache, self.index)
            else:
                release(cache, self.index, call.mode.name)
        own = LayerCall(call, self.index, router, hidden, place)
        return args, {**kwargs, KEYWORD: own}
