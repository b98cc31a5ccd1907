"""What every regime shares: the model as a submodule, steps, schedule, checkpoints, validation.

Shapes: B batch, T tokens.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
import torch
from pytorch_lightning.callbacks import Timer
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard
from transformers import PreTrainedModel

from experiments import trained
from experiments.methods.base import Method
from experiments.regimes.tensors import (
    compute_again,
    frozen,
    layers,
    reshard,
    weights_hash,
)
from experiments.settings import Experiment, Settings, Training
from experiments.sources import sharded

Auxiliary = Callable[["Regime", dict[str, Tensor]], Tensor]  # a loss that is added to a batch's
AfterStep = Callable[["Regime", int], None]  # called with the number of steps that are done


class Regime(pl.LightningModule):
    """Trains a cell's model on next-token loss, under the cell's method.

    The model is built in :meth:`configure_model`, in every process, and sharded there where the
    strategy asks for it. Checkpoints hold what is trained, the optimiser, the loader's place and
    the course so far: a resumed run reports what an undisturbed one would.

    Args:
        cell: an experiment that trains.
        seed: of what is drawn.
        chosen: the settings that name the cell's texts and start.

    Attributes:
        losses: of every step so far, nats a token, averaged over batches and processes.
        validation: mean loss on validation windows by the number of steps that were done.
        auxiliary: losses that are added to the next token's.
        after_step: called after every step of the optimiser.
        timer: has the wall time of the training.
    """

    def __init__(self, cell: Experiment, seed: int, chosen: Settings) -> None:
        super().__init__()
        self.strict_loading = False  # checkpoints hold a part of the model
        self.cell, self.seed, self.chosen = cell, seed, chosen
        self.settings: Training = cell.regime  # type: ignore[assignment]
        self.model: PreTrainedModel | None = None
        self.method: Method | None = None
        self.losses: list[float] = []
        self.validation: dict[int, float] = {}
        self.auxiliary: list[Auxiliary] = []
        self.after_step: list[AfterStep] = []
        self.before = ""  # hash of the frozen weights
        self.timer = Timer()
        self._validated: list[float] = []

    # What a regime says.

    @classmethod
    def original(cls, model: PreTrainedModel, seed: int) -> PreTrainedModel:
        """The model before all else; as pretrained."""
        return model

    def prepared(self, model: PreTrainedModel) -> PreTrainedModel:
        """The model with what is trained requiring gradients, and nothing else; :meth:`units` can
        be called from then on. Its weights may not be there yet: see :meth:`ready`."""
        raise NotImplementedError

    def units(self) -> Iterable[nn.Module]:
        """Modules that are sharded apart from their layers: of another number format."""
        return ()

    def rates(self) -> list[dict[str, Any]]:
        """Groups of what is trained, each with its highest rate."""
        wanted = [p for p in self.parameters() if p.requires_grad]
        return [{"params": wanted, "lr": self.settings.learning_rate}]

    def save(self, folder: Path) -> None:
        """Writes what was trained, in bfloat16; every process must call it."""
        raise NotImplementedError

    @classmethod
    def load(cls, model: PreTrainedModel, folder: Path) -> PreTrainedModel:
        """The model with what :meth:`save` wrote."""
        raise NotImplementedError

    def begin(self) -> tuple[PreTrainedModel, Method]:
        """The model as training starts with it; where it is sharded afterwards, on the CPU or
        without weights."""
        spread = self.device_mesh is not None
        return trained.begin(self.cell, self.seed, self.chosen, spread=spread)

    def ready(self) -> None:
        """What only a model with its weights can tell, before it is trained; every process must
        call it."""

    # What Lightning calls.

    def configure_callbacks(self) -> list[pl.Callback]:
        """The clock, which goes on from a checkpoint's."""
        return [self.timer]

    def configure_model(self) -> None:
        """Builds the model; Lightning may call it more than once."""
        if self.model is not None:
            return
        model, self.method = self.begin()
        with sharded.as_on_cpu(model):
            self.model = self.prepared(model)
        if self.settings.checkpoint_activations:
            compute_again(self.model)
        if self.device_mesh is not None:
            mesh = self.device_mesh["data_parallel"]
            for module in (*self.units(), *layers(self.model), self.model):
                fully_shard(module, mesh=mesh)
            trained.fill(self.model, self.cell, self.seed, self.chosen)
        self.ready()
        reshard(self.model)

    def configure_optimizers(self) -> dict[str, Any]:
        """AdamW with a linear warm-up and a cosine down to zero."""
        how = self.settings
        optimizer = torch.optim.AdamW(self.rates(), weight_decay=how.weight_decay)
        schedule = torch.optim.lr_scheduler.LambdaLR(
            optimizer, lambda step: warmup_cosine(step, how.warmup_steps, how.steps)
        )
        return {"optimizer": optimizer,
                "lr_scheduler": {"scheduler": schedule, "interval": "step"}}  # fmt: skip

    def training_step(self, batch: dict[str, Tensor], index: int) -> Tensor:
        """Loss, nats a token, of ``input_ids`` (B, T).

        Raises:
            ValueError: it is not finite.
        """
        # Whatever a step draws (dropout) is its own: a resumed run draws the same.
        torch.manual_seed((self.seed * 1_000_003 + index) * 4099 + self.global_rank)
        loss = self.loss(batch["input_ids"], index)
        for term in self.auxiliary:
            loss = loss + term(self, batch)
        if not bool(torch.isfinite(loss)):
            raise ValueError(
                f"experiments.{self.cell.block}.regime.learning_rate: loss is "
                f"{float(loss.detach())} at step {self.global_step}; lower it"
            )
        self._note(loss.detach().clone())  # reducing writes into it
        return loss

    def loss(self, ids: Tensor, index: int) -> Tensor:
        """Loss of tokens (B, T), the ``index``-th batch, under the method's training."""
        with self.method.training(self.model, self.global_step, self.settings):
            return next_token_loss(self.model, ids)

    def _note(self, loss: Tensor) -> None:
        mean = float(self.trainer.strategy.reduce(loss, reduce_op="mean"))
        if len(self.losses) <= self.global_step:
            self.losses.append(0.0)
        self.losses[self.global_step] += mean / self.settings.accumulate
        self.log("loss", mean, prog_bar=True)

    def optimizer_step(self, *args: Any, **kwargs: Any) -> None:
        """As ever, and then the callbacks."""
        super().optimizer_step(*args, **kwargs)
        for call in self.after_step:
            call(self, self.global_step + 1)  # Lightning counts it later

    def on_validation_epoch_start(self) -> None:
        """Forgets the windows of the last validation."""
        self._validated = []

    def validation_step(self, batch: dict[str, Tensor], index: int) -> None:
        """Loss of validation windows (B, T) as the cell is read, at its first budget."""
        budget = self.cell.budgets[0] if self.cell.budgets else None
        with self.method.applied(self.model, self.cell.aim(budget)):
            self._validated.append(float(next_token_loss(self.model, batch["input_ids"])))

    def on_validation_epoch_end(self) -> None:
        """Notes the mean; all processes have read the same windows."""
        self.validation[self.global_step] = sum(self._validated) / len(self._validated)
        mean = self.validation[self.global_step]
        self.log("validation_loss", mean, prog_bar=True, rank_zero_only=True)

    def state_dict(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
        """What is trained, and the buffers that training changes."""
        kept = {name for name, p in self.named_parameters() if p.requires_grad}
        kept |= {name for name, _ in self.named_buffers() if self.learns(name)}
        found: dict[str, Any] = super().state_dict(*args, **kwargs)
        return {name: tensor for name, tensor in found.items() if name in kept}

    def learns(self, buffer: str) -> bool:
        """Whether training changes a buffer, by its name."""
        return False

    # Frozen weights, time, checkpoints.

    def on_fit_start(self) -> None:
        """Remembers the frozen weights."""
        self.before = weights_hash(frozen(self.model))

    def check_frozen(self) -> None:
        """Raises RuntimeError where training has changed a weight that it must not."""
        reshard(self.model)
        if weights_hash(frozen(self.model)) != self.before:
            raise RuntimeError("a frozen weight changed during training: a bug, not a result")

    @property
    def trained_parameters(self) -> int:
        """How many numbers are trained."""
        return sum(p.numel() for p in self.parameters() if p.requires_grad)

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Adds the course so far."""
        checkpoint["course"] = {"losses": list(self.losses), "validation": dict(self.validation)}

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Takes up the course where the checkpoint left it."""
        course = checkpoint["course"]
        self.losses, self.validation = list(course["losses"]), dict(course["validation"])


def next_token_loss(model: nn.Module, input_ids: Tensor) -> Tensor:
    """Mean negative log-likelihood, nats a token, of tokens 1.. of (B, T); a float32 scalar."""
    logits = model(input_ids=input_ids, use_cache=False).logits[:, :-1]
    return torch.nn.functional.cross_entropy(
        logits.flatten(0, 1).float(), input_ids[:, 1:].flatten()
    )


def warmup_cosine(step: int, warmup: int, total: int) -> float:
    """Factor of the learning rate at a step: linear to 1, then a cosine to 0 at ``total``."""
    if step < warmup:
        return (step + 1) / warmup
    progress = (step - warmup) / max(1, total - warmup)
    return 0.5 * (1.0 + math.cos(math.pi * min(1.0, progress)))
