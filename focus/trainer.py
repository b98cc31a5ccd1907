"""Focus in transformers' Trainer."""

from __future__ import annotations

from contextvars import ContextVar
from typing import Any

import torch
from torch import nn
from transformers import TrainerCallback

from focus.config import FocusConfig
from focus.modes import mode
from focus.state import attached, transformers_model

# What a forward pass under way has entered; of this thread alone.
_entered: ContextVar[mode | None] = ContextVar("focus_trainer_entered", default=None)


class FocusCallback(TrainerCallback):
    """Trains the routers in soft mode and evaluates in hard mode.

    ``Trainer(model, ..., callbacks=[FocusCallback()])``. A forward pass runs in soft mode while
    training has begun, the model is in training mode and gradients are on; all others, evaluation
    and prediction among them, run as ever, in hard mode.

    The mode is entered by a hook on the model and not between the Trainer's events: none of those
    follows an error within a step, and the threads of DataParallel would not see it.

    Args:
        temperature: of the routers at the first step and at the last, falling (or rising)
            geometrically in between; None: the config's throughout. The last should be the
            config's, which is what evaluation takes.
        changes: other fields of the config in training, as of :class:`focus.mode` (``gate``,
            ``top_k``).

    Raises:
        ValueError: a temperature that is not two positive numbers, or an unknown field.
    """

    def __init__(self, temperature: tuple[float, float] | None = None, **changes: Any) -> None:
        FocusConfig.check_names(changes)
        two = isinstance(temperature, tuple | list) and len(temperature) == 2
        if temperature is not None and not (two and min(temperature) > 0):
            raise ValueError(
                f"temperature: must be two positive numbers (first step, last), got {temperature!r}"
            )
        self.temperature = temperature
        self.changes = changes
        self.now: float | None = None
        self.handles: list[Any] = []

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Training starts, or goes on from a checkpoint."""
        self._remove()
        state = attached(kwargs["model"])  # refuses a model without Focus before the first step
        inner = transformers_model(kwargs["model"])
        self.handles = [
            inner.register_forward_pre_hook(self._enter, prepend=True),
            inner.register_forward_hook(self._leave, always_call=True),
        ]
        state.handles += self.handles  # detach removes them, too, where training ended in an error

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """The temperature of the step."""
        if self.temperature is not None:
            first, last = self.temperature
            share = state.global_step / max(1, state.max_steps - 1)
            self.now = first * (last / first) ** min(1.0, share)

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Training is over."""
        self._remove()

    def _remove(self) -> None:
        for handle in self.handles:
            handle.remove()
        self.handles = []

    def _enter(self, module: nn.Module, args: Any) -> None:
        if not (module.training and torch.is_grad_enabled()):
            return
        changes = self.changes if self.now is None else {**self.changes, "temperature": self.now}
        entered = mode(module, "soft", **changes)
        entered.__enter__()
        _entered.set(entered)

    def _leave(self, module: nn.Module, args: Any, output: Any) -> None:
        entered = _entered.get()
        if entered is not None:
            _entered.set(None)
            entered.__exit__(None, None, None)
