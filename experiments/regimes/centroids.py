"""LightningModules: one training regime a class.

Shapes: B batch, T tokens.
"""

from __future__ import annotations

import math
import time
from typing import Any

import pytorch_lightning as pl
import torch
from torch import Tensor
from transformers import PreTrainedModel

import focus
from experiments.settings import RetrofitSettings
from focus.adapter import adapter_state


class Centroids(pl.LightningModule):
    """Trains the routers of an attached model on next-token loss; everything else is frozen.

    The forward pass runs in ``soft`` mode. Checkpoints hold the routers, the optimiser and the
    loss of every step, so a resumed run reports what an undisturbed one would.

    Args:
        model: a model with Focus attached.
        settings: optimiser, schedule and number of steps.
    """

    def __init__(self, model: PreTrainedModel, settings: RetrofitSettings) -> None:
        super().__init__()
        self.strict_loading = False
        # In a list, so that Lightning neither moves nor saves 135 million frozen weights.
        self._model = [model]
        self.routers = torch.nn.ParameterList(focus.trainable_parameters(model))
        self.settings = settings
        self.losses: list[float] = []
        self._before: float = 0.0
        self._started: float | None = None
        self.model.eval()
        for router in model.focus_state.routers.values():
            router.train()

    @property
    def model(self) -> PreTrainedModel:
        """The attached model."""
        return self._model[0]

    def training_step(self, batch: dict[str, Tensor], index: int) -> Tensor:
        """Loss, nats a token, of ``input_ids`` (B, T) under the training gate."""
        final = self.model.focus_state.config.temperature
        how = gate_at(self.global_step, self.settings, final)
        loss = LOSSES[self.settings.loss](self.model, batch["input_ids"], **how)
        if not bool(torch.isfinite(loss)):
            raise ValueError(
                f"loss is {float(loss.detach())} at step {self.global_step}; lower "
                "retrofit.learning_rate or raise the temperature"
            )
        self.losses.append(float(loss.detach()))
        self.log("loss", loss.detach(), prog_bar=True)
        return loss

    def configure_optimizers(self) -> dict[str, Any]:
        """AdamW with a linear warm-up and a cosine down to zero."""
        settings = self.settings
        optimizer = torch.optim.AdamW(
            self.routers, lr=settings.learning_rate, weight_decay=settings.weight_decay
        )
        schedule = torch.optim.lr_scheduler.LambdaLR(
            optimizer, lambda step: warmup_cosine(step, settings.warmup_steps, settings.steps)
        )
        return {
            "optimizer": optimizer,
            "lr_scheduler": {"scheduler": schedule, "interval": "step"},
        }

    def state_dict(self, *_: Any, **__: Any) -> dict[str, Any]:
        """The routers alone: parameters and potentials."""
        return {name: tensor.detach().clone() for name, tensor in adapter_state(self.model).items()}

    def load_state_dict(self, state_dict: Any, strict: bool = False, assign: bool = False) -> Any:
        """Fills the routers in place."""
        own = adapter_state(self.model)
        if set(own) != set(state_dict):
            raise ValueError("checkpoint: its routers are not this model's; delete the checkpoint")
        for name, tensor in own.items():
            tensor.copy_(state_dict[name])

    @property
    def seconds(self) -> float:
        """Wall time of the training, with that before the checkpoint it went on from."""
        return self._before + (time.monotonic() - self._started if self._started else 0.0)

    def on_train_start(self) -> None:
        """The clock runs from here."""
        self._started = time.monotonic()

    def on_train_end(self) -> None:
        """The clock stops: what follows is no training."""
        self._before, self._started = self.seconds, None

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Adds the losses and the wall time so far."""
        checkpoint["losses"], checkpoint["seconds"] = list(self.losses), self.seconds

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Takes up the losses and the wall time where the checkpoint left them."""
        self.losses, self._before = list(checkpoint["losses"]), checkpoint.get("seconds", 0.0)


def gated_next_token_loss(model: PreTrainedModel, input_ids: Tensor, **how: Any) -> Tensor:
    """Next-token loss under the training gate; ``how`` overrides the config: :func:`gate_at`."""
    with focus.mode(model, "soft", **how):
        return next_token_loss(model, input_ids)


def distillation_loss(model: PreTrainedModel, input_ids: Tensor, **how: Any) -> Tensor:
    """KL divergence, nats a token, of predictions under the gate from the pretrained model's."""
    with torch.no_grad(), focus.mode(model, "full"):
        wanted = model(input_ids=input_ids, use_cache=False).logits.flatten(0, 1).float()
    with focus.mode(model, "soft", **how):
        found = model(input_ids=input_ids, use_cache=False).logits.flatten(0, 1).float()
    kl = torch.nn.functional.kl_div
    return kl(found.log_softmax(-1), wanted.log_softmax(-1), log_target=True, reduction="batchmean")


def next_token_loss(model: PreTrainedModel, input_ids: Tensor) -> Tensor:
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


def cooled(step: int, settings: RetrofitSettings, final: float) -> float:
    """The routers' temperature at a step: geometric from ``temperature_start`` to ``final``."""
    start = settings.temperature_start
    if start is None or step >= settings.steps - 1:
        return final
    return start * (final / start) ** (step / (settings.steps - 1))


def gate_at(step: int, settings: RetrofitSettings, final: float) -> dict[str, Any]:
    """What overrides the config at a step: the temperature, which ends at ``final``, and from
    ``hard_from`` on the gate, by the hard mask itself.

    Those steps take ``hard_top_ks`` in turn: routers that are read with one, two and four groups a
    query then know what each of them leaves out.
    """
    how: dict[str, Any] = {"temperature": cooled(step, settings, final)}
    if settings.hard_from is None or step < settings.hard_from * settings.steps:
        return how
    top_k = settings.hard_top_ks[step % len(settings.hard_top_ks)]
    return {**how, "gate": "straight_through", "top_k": top_k, "probe": "multi_probe"}


LOSSES = {"next_token": gated_next_token_loss, "distil": distillation_loss}
