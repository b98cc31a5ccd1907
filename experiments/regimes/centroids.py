"""Routers alone; everything else is frozen. What the paper does.

Shapes: B batch, T tokens.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

import focus
from experiments.record import first_process
from experiments.regimes.base import Regime, next_token_loss
from experiments.regimes.tensors import ROUTER
from experiments.settings import Centroids as CentroidsSettings
from experiments.texts import training_windows
from focus.adapter import describe
from focus.fingerprint import fingerprint
from focus.routing import Router

EXACT = ("potentials", "batches", "heavy_bias", "taken_at")  # buffers that are saved as they are
CALIBRATION = 8  # windows of training


class Centroids(Regime):
    """Routers under the training gate: the method's, step by step; before them heavy hitters, and
    after them groups shared out among heads, where the method has either."""

    settings: CentroidsSettings

    def prepared(self, model: PreTrainedModel) -> PreTrainedModel:
        """Routers in training mode, so that their potentials learn; the model without dropout."""
        model.requires_grad_(False)
        model.eval()
        for router in routers(model):
            router.train().requires_grad_()
        return model

    def ready(self) -> None:
        """Whose weights these are, and heavy hitters."""
        self.base, _ = fingerprint(self.model, gather=True)
        if share := self.cell.method.fields.get("heavy_hitters", 0):
            focus.find_heavy_hitters(self.model, self._texts(), share)

    def _texts(self) -> list[Tensor]:
        """Windows (1, T) of the training texts, to calibrate on."""
        windows = training_windows(self.cell, self.chosen, self.settings.context, CALIBRATION,
                                   self.seed)  # fmt: skip
        return [windows[place]["input_ids"][None] for place in range(CALIBRATION)]

    def units(self) -> Iterable[nn.Module]:
        """Routers are float32, whatever the model is."""
        return routers(self.model)

    def learns(self, buffer: str) -> bool:
        """The potentials, and how many batches they average."""
        return ROUTER in buffer

    def loss(self, ids: Tensor, index: int) -> Tensor:
        """As ever, or under the routing of the batch before."""
        if not self.settings.shuffled:
            return super().loss(ids, index)
        with (
            self.method.training(self.model, self.global_step, self.settings),
            routed_by(self.model, self._former(index)),
        ):
            return next_token_loss(self.model, ids)

    def _former(self, index: int) -> Tensor:
        """This process's windows (B, T) of the batch before; before the first, of the last."""
        loader = self.trainer.train_dataloader
        rows, size = loader.dataset, loader.batch_size
        start = (index - 1) * size % len(rows)
        ids = torch.stack([rows[start + place]["input_ids"] for place in range(size)])
        return ids.to(self.device)

    def save(self, folder: Path) -> None:
        """As focus.save_adapter does, parameters in bfloat16; the potentials, few, as they are.
        Groups are shared out first, where the method wants it."""
        if self.cell.method.fields.get("allocated"):
            focus.allocate_groups(self.model, self._texts())
        adapter = describe(self.model)
        adapter.base.pop("fingerprint_left_out", None)
        adapter.base["fingerprint"] = self.base
        adapter.tensors = {
            name: tensor if name.endswith(EXACT) else tensor.bfloat16()
            for name, tensor in adapter.tensors.items()
        }
        if first_process():
            adapter.write(folder)

    @classmethod
    def load(cls, model: PreTrainedModel, folder: Path) -> PreTrainedModel:
        """Routers in place of those that are there."""
        if "focus_state" in model.__dict__:
            focus.detach(model)
        return focus.load_adapter(model, folder)


def routers(model: nn.Module) -> list[Router]:
    """The routers of an attached model."""
    return [each for each in model.modules() if isinstance(each, Router)]


@contextmanager
def routed_by(model: nn.Module, ids: Tensor) -> Iterator[None]:
    """Routers are given the hidden states of another text (B, T) in place of the model's own, so
    that gates say nothing of what they gate.

    Raises:
        ValueError: the text is of another size than what the model is then given.
    """
    found: dict[Router, Tensor] = {}

    def keep(router: Router, args: tuple[Any, ...]) -> None:
        found[router] = args[0]

    def give(router: Router, args: tuple[Any, ...]) -> tuple[Any, ...]:
        if found[router].shape != args[0].shape:
            raise ValueError(f"shuffled: routing of {tuple(found[router].shape)} for states of "
                             f"{tuple(args[0].shape)}")  # fmt: skip
        return (found[router], *args[1:])

    with ExitStack() as hooks, torch.no_grad():  # with gradients potentials would learn from it
        for router in routers(model):
            hooks.enter_context(router.register_forward_pre_hook(keep))
        model(input_ids=ids, use_cache=False)
    with ExitStack() as hooks:
        for router in found:
            hooks.enter_context(router.register_forward_pre_hook(give))
        yield
