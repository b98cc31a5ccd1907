"""Focus in transformers' Trainer."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextvars import ContextVar
from typing import Any

import torch
from torch import nn
from transformers import TrainerCallback

from focus.config import FocusConfig
from focus.modes import mode
from focus.state import attached, transformers_model

Schedule = Callable[[int, int], Mapping[str, Any]]

# What a forward pass under way has entered; of this thread alone.
_entered: ContextVar[mode | None] = ContextVar("focus_trainer_entered", default=None)


class FocusCallback(TrainerCallback):
    """Trains the routers in soft mode and evaluates in hard mode.

    ``Trainer(model, ..., callbacks=[FocusCallback(focus.recipe_schedule)])``. A forward pass runs
    in soft mode while training has begun, the model is in training mode and gradients are on; all
    others, evaluation and prediction among them, run as ever, in hard mode.

    The mode is entered by a hook on the model and not between the Trainer's events: none of those
    follows an error within a step, and the threads of DataParallel would not see it.

    Args:
        schedule: from step and number of steps to fields of the config that hold in that step, as
            :func:`focus.recipe_schedule` gives them; None: the config's own throughout.
        changes: fields of the config in every training step, as of :class:`focus.mode` (``gate``,
            ``top_k``); the schedule's come before them.

    Raises:
        ValueError: an unknown field, or a schedule that cannot be called.
    """

    def __init__(self, schedule: Schedule | None = None, **changes: Any) -> None:
        FocusConfig.check_names(changes)
        if schedule is not None and not callable(schedule):
            raise ValueError(f"schedule: must be a function such as focus.recipe_schedule, got "
                             f"{schedule!r}")  # fmt: skip
        self.schedule = schedule
        self.changes = changes
        self.now: dict[str, Any] = dict(changes)
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
        """The fields of the step."""
        if self.schedule is not None:
            self.now = {**self.changes, **self.schedule(state.global_step, state.max_steps)}

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
        entered = mode(module, "soft", **self.now)
        entered.__enter__()
        _entered.set(entered)

    def _leave(self, module: nn.Module, args: Any, output: Any) -> None:
        entered = _entered.get()
        if entered is not None:
            _entered.set(None)
            entered.__exit__(None, None, None)
