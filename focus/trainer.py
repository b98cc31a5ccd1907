"""Focus in transformers' Trainer."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import nn
from transformers import PreTrainedModel, TrainerCallback
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR

from focus.adapter import save_adapter
from focus.call import Mode
from focus.config import FocusConfig
from focus.hub import FocusAdapter
from focus.modes import mode
from focus.named import take
from focus.state import attached

Schedule = Callable[[int, int], Mapping[str, Any]]

FOLDER = "focus"  # of a checkpoint; within it one by name, or Trainer would take it for peft's
CHECKED = 1000  # steps of a schedule that are tried before the first


def checkpoint(args: Any, step: int) -> Path:
    """Where Trainer puts the checkpoint of a step."""
    return Path(args.output_dir) / f"{PREFIX_CHECKPOINT_DIR}-{step}"


def restore(model: nn.Module, folder: Path) -> None:
    """Gives the routers of a peft model, which an optimiser may know, the values of a checkpoint;
    refuses one without any, of another config, or with other weights of peft's."""
    state = attached(model)
    own = folder / FOLDER / state.active
    cure = ("copy the checkpoint into output_dir, focus folder and all, or start anew after "
            "focus.load_adapter")  # fmt: skip
    if not own.is_dir():
        raise ValueError(f"resume_from_checkpoint: {own} is not there, and a checkpoint of a peft "
                         f"model holds no routers beside it; {cure}")  # fmt: skip
    if not holds(model, folder):
        raise ValueError(f"resume_from_checkpoint: peft's weights are not those of {folder}, where "
                         f"the routers would come from; {cure}")  # fmt: skip
    adapter = FocusAdapter.from_pretrained(own)
    check_config(adapter.config, state.config, own, cure)
    take(state, adapter.tensors)


def check_config(there: FocusConfig, here: FocusConfig, own: Path, cure: str) -> None:
    """Refuses routers of a checkpoint that were trained with another config."""
    other = [f"{each.name} = {getattr(there, each.name)!r} there, "
             f"{getattr(here, each.name)!r} here" for each in fields(FocusConfig)
             if getattr(there, each.name) != getattr(here, each.name)]  # fmt: skip
    if other:
        raise ValueError(f"resume_from_checkpoint: the routers of {own} were trained with "
                         f"{'; '.join(other)}; attach with that config, or {cure}")  # fmt: skip


def holds(model: nn.Module, folder: Path) -> bool:
    """Whether a peft model has the weights of a checkpoint; true where it is of another form."""
    file = folder / "adapter_model.safetensors"
    if not file.is_file():
        return True
    own = dict(model.state_dict())
    # peft leaves the adapter's name out: lora_A.weight is lora_A.default.weight
    active = getattr(model, "active_adapter", "default")
    saved = {name.replace(".weight", f".{active}.weight"): each
             for name, each in load_file(file).items()}  # fmt: skip
    return all(torch.equal(own[name].cpu(), each) for name, each in saved.items() if name in own)


class FocusCallback(TrainerCallback):
    """Trains the routers in soft mode and evaluates in hard mode.

    ``Trainer(model, ..., callbacks=[FocusCallback(focus.recipe_schedule)])``. A forward pass runs
    in soft mode while training lasts, the model is in training mode, gradients are on and no
    ``focus.mode`` is entered; all others, evaluation and prediction among them, run as ever, in
    hard mode. No event of the Trainer follows an error within a step: after one, training lasts
    until the next, or :func:`focus.detach`.

    Each checkpoint gets a folder ``focus/default`` (or the adapter's name) as
    :func:`focus.save_adapter` writes it. Where the model is peft's, whose checkpoints hold peft's
    weights alone, training goes on from that, and the best model is loaded from it.

    Args:
        schedule: from step and number of steps to fields of the config that hold in that step, as
            :func:`focus.recipe_schedule` gives them; None: the config's own throughout. It is
            also called before the first step, so what it gives must depend on these alone.
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

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Training starts, or goes on from a checkpoint: refuses a schedule with fields that the
        config cannot have, and a checkpoint without routers."""
        model = kwargs["model"]
        if attached(model).entered:
            raise ValueError("focus.mode: is entered around Trainer.train(), where it would go "
                             "before the callback's modes and schedule; leave it out")  # fmt: skip
        self._check_schedule(model, range(state.global_step, state.max_steps))
        if not state.global_step:
            return
        given = args.resume_from_checkpoint
        there = Path(given) if isinstance(given, str) else checkpoint(args, state.global_step)
        if not isinstance(model, PreTrainedModel):
            restore(model, there)
            return
        own = there / FOLDER / attached(model).active
        if own.is_dir():  # of a plain model Trainer has loaded the routers, whatever their config
            check_config(FocusAdapter.from_pretrained(own).config, attached(model).config, own,
                         "start anew after focus.load_adapter")  # fmt: skip

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """The mode of the step."""
        changes = dict(self.changes)
        if self.schedule is not None:
            changes |= self.schedule(state.global_step, state.max_steps)
        given = {field: value for field, value in changes.items() if value is not None}
        attached(kwargs["model"]).trained = Mode("soft", changes=given)

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """A checkpoint was written."""
        if state.is_hyper_param_search:  # whose checkpoints lie elsewhere
            return
        name = attached(kwargs["model"]).active
        save_adapter(kwargs["model"], checkpoint(args, state.global_step) / FOLDER / name)

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Training is over."""
        attached(kwargs["model"]).trained = None
        best = state.best_model_checkpoint if args.load_best_model_at_end else None
        if best and not isinstance(kwargs["model"], PreTrainedModel):
            try:
                restore(kwargs["model"], Path(best))
            except ValueError as error:  # the training is done, and its routers are worth keeping
                warnings.warn(f"the routers stay those of the last step: {error}", stacklevel=2)

    def _check_schedule(self, model: nn.Module, steps: range) -> None:
        if self.schedule is None or not steps:
            return
        every = max(1, len(steps) // CHECKED)
        for step in dict.fromkeys([*steps[::every], steps[-1]]):
            with mode(model, "soft", **{**self.changes, **self.schedule(step, steps.stop)}):
                pass
