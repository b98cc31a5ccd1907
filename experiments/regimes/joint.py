"""Routers under the training gate, and with them, where asked, all weights; groups are kept of one
size by a mitigation, and watched step by step (paper: Tables 8 and 9).

Shapes: B batch, T tokens, E model dimension, R routing dimension, K groups.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from torch import Tensor
from transformers import PreTrainedModel

import focus
from experiments import registry
from experiments.methods.focus import balance_statistics
from experiments.mitigations.seen import Seen, gathered
from experiments.record import first_process, write_text
from experiments.regimes import full
from experiments.regimes.centroids import Centroids, routers
from experiments.regimes.tensors import ROUTER, reshard, save_bfloat16
from experiments.settings import Joint as JointSettings
from focus.routing import Router

TRACE = "groups.csv"  # beside the adapter


class Joint(Centroids):
    """Trains routers, or routers and weights, and notes what becomes of the groups.

    Attributes:
        routers: of the model.
        seen: their inputs and logits in the last forward pass.
        trace: a row a step and layer.
        after_backward: called when a backward pass has left its gradients.
    """

    settings: JointSettings

    def prepared(self, model: PreTrainedModel) -> PreTrainedModel:
        """Routers in training mode, the mitigation installed; weights that require gradients."""
        model = super().prepared(model)
        self.routers, self.trace = routers(model), []  # type: tuple[list[Router], list[Any]]
        self.seen = Seen(self.routers)
        chosen = registry.find("mitigation", self.settings.mitigation)
        self._refuse(chosen.BALANCE)
        self.after_backward: list[Callable[[Joint], None]] = []
        warnings.filterwarnings("ignore", ".*routers are in evaluation mode.*")  # as some want it
        for name, parameter in model.named_parameters():
            if ROUTER not in f".{name}":
                parameter.requires_grad_(self.settings.weights)
        chosen.install(self)
        self.first: dict[Router, dict[str, Tensor]] = {}
        self.former: dict[Router, Tensor] = {}
        self.after_step.append(watch)
        return model

    def _refuse(self, balance: str) -> None:
        config, path = self.method.config, f"experiments.{self.cell.block}.method"
        if config.balance != balance:
            raise ValueError(f"{path}.balance: mitigation {self.settings.mitigation} is of "
                             f"balance {balance}, got {config.balance}")  # fmt: skip
        if config.two_sided:
            raise ValueError(f"{path}.routers: must be layer or paper, which have one set of "
                             f"groups a layer, got {config.routers}")  # fmt: skip

    def rates(self) -> list[dict[str, Any]]:
        """The weights have a rate of their own."""
        wanted = [(n, p) for n, p in self.named_parameters() if p.requires_grad]
        routed = [p for n, p in wanted if ROUTER in f".{n}"]
        weights = [p for n, p in wanted if ROUTER not in f".{n}"]
        parts = [{"params": routed, "lr": self.settings.learning_rate},
                 {"params": weights, "lr": self.settings.weights_rate}]  # fmt: skip
        return [each for each in parts if each["params"]]

    def backward(self, loss: Tensor, *args: Any, **kwargs: Any) -> None:
        """As ever; what was seen is the forward pass's."""
        with self.seen.closed():
            super().backward(loss, *args, **kwargs)

    def on_after_backward(self) -> None:
        """The callbacks: a hook on a parameter would not outlive its sharding."""
        for call in self.after_backward:
            call(self)

    def save(self, folder: Path) -> None:
        """Routers as an adapter, the weights beside them, and the trace."""
        super().save(folder)
        if self.settings.weights:
            weights = {n: p for n, p in self.model.named_parameters() if ROUTER not in f".{n}"}
            save_bfloat16(weights, folder / full.FILE)
        if first_process():
            write_text(folder.parent / TRACE, pd.DataFrame(self.trace).to_csv(index=False))

    @classmethod
    def load(cls, model: PreTrainedModel, folder: Path) -> PreTrainedModel:
        """Routers, which know the weights that they started with, and then the weights."""
        model = super().load(model, folder)
        return full.Full.load(model, folder) if (folder / full.FILE).is_file() else model

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """The trace goes with the course, and what it is compared with."""
        super().on_save_checkpoint(checkpoint)
        seen = [(self.first.get(router), self.former.get(router)) for router in self.routers]
        checkpoint["course"] |= {"trace": list(self.trace), "seen": seen}

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """The trace goes on."""
        super().on_load_checkpoint(checkpoint)
        self.trace = list(checkpoint["course"]["trace"])
        seen = checkpoint["course"].get("seen", [])  # none in files of before
        for router, (first, former) in zip(self.routers, seen, strict=bool(seen)):
            if first is not None and former is not None:
                self.first[router], self.former[router] = first, former


def watch(regime: Joint, step: int) -> None:
    """Notes every layer's groups on the first training window, each ``watch_every`` steps; that of
    the first process in all, so that they hold the same trace."""
    if step % regime.settings.watch_every and step != 1:
        return
    own = regime.trainer.train_dataloader.dataset[0]["input_ids"][None]
    ids = regime.trainer.strategy.broadcast(own).to(regime.device)
    before = dict(regime.seen.hidden), dict(regime.seen.logits)
    with torch.no_grad(), focus.mode(regime.model, "soft", balance=regime.method.config.balance):
        regime.model(input_ids=ids, use_cache=False)
    for layer, router in enumerate(regime.routers):
        regime.trace.append({"step": step, "layer": layer, **state(regime, router)})
    reshard(regime.model)  # no backward pass follows, which would
    regime.seen.hidden, regime.seen.logits = before


def state(regime: Joint, router: Router) -> dict[str, float | None]:
    """How even, how sure and how stable a layer's groups are, and the three ways out of a balance
    (paper: Section 4): centroids that drift, representations that shift, a projection that
    collapses."""
    logits, groups = regime.seen.logits[router].float(), regime.seen.assigned(router)
    members = torch.nn.functional.one_hot(groups[:, 0], router.config.num_groups).bool()
    now = {"centroids": gathered(router.centroids).clone(),
           "hidden": regime.seen.hidden[router].detach().clone()}  # fmt: skip
    first, former = regime.first.setdefault(router, now), regime.former.get(router)
    regime.former[router] = groups
    kept = None if former is None else former.to(groups.device) == groups
    return {
        **balance_statistics(members),
        "alive": alive(members),
        "confidence": float(logits.softmax(-1).amax(-1).mean()),
        "agreement": None if kept is None else float(kept.float().mean()),
        "drift": change(first["centroids"], now["centroids"]),
        "shift": change(first["hidden"], now["hidden"]),
        "rank": rank(regime.seen.projected(router)),
    }  # fmt: skip


def alive(members: Tensor) -> int:
    """Groups of a layer that have a hundredth of the tokens, of memberships (B, Hr, T, K)."""
    return int((members.flatten(0, -2).float().mean(0) >= 0.01).sum())


def change(before: Tensor, now: Tensor) -> float:
    """Norm of a change, of the norm before."""
    before = before.to(now.device)  # a checkpoint's lie on the CPU
    return float((now - before).norm() / before.norm())


def rank(points: Tensor) -> float:
    """Dimensions that points (N, R) fill: the participation ratio of their covariance."""
    spectrum = torch.linalg.svdvals(points - points.mean(0)).square()
    return float(spectrum.sum().square() / spectrum.square().sum().clamp(min=1e-30))
