"""Fits a regime: Lightning's trainer, what it cannot do here, checkpoints that outlive a kill."""

from __future__ import annotations

import logging
import os
import warnings
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
import torch
from lightning_fabric.plugins.io.torch_io import TorchCheckpointIO
from pytorch_lightning.callbacks import ModelCheckpoint, TQDMProgressBar
from pytorch_lightning.strategies import ModelParallelStrategy

from experiments.record import written
from experiments.regimes.base import Regime
from experiments.settings import Experiment, Training


def fit(regime: Regime, data: pl.LightningDataModule, folder: Path) -> int | None:
    """Trains, or goes on from the last checkpoint in ``folder``, which the caller removes once the
    result is saved.

    Returns:
        The step that it went on from; None: it started afresh.

    Raises:
        RuntimeError: a frozen weight changed.
    """
    quiet()
    pl.seed_everything(regime.seed, verbose=False)
    found = latest(folder)
    # The file is our own, and the loader's place is no plain tensor.
    trainer(regime.settings, folder).fit(regime, data, ckpt_path=found, weights_only=False)
    regime.check_frozen()
    return step_of(found) if found else None


def quiet() -> None:
    """Without what Lightning says of every training: frozen parts are meant to be, windows need no
    workers, and a folder with checkpoints is what a killed run leaves."""
    for text in ("does not have many workers", "Checkpoint directory .* exists", "in eval mode",
                 "isinstance.*LeafSpec", "across ranks is zero",
                 "'set_vital' is deprecated"):  # fmt: skip
        warnings.filterwarnings("ignore", f".*{text}.*")
    logging.getLogger("pytorch_lightning.utilities.rank_zero").setLevel(logging.WARNING)


def trainer(how: Training, folder: Path) -> pl.Trainer:
    """A trainer that checkpoints into ``folder``."""
    saver = ModelCheckpoint(
        dirpath=folder, filename="{step}", every_n_train_steps=how.checkpoint_every, save_top_k=1,
        save_on_train_epoch_end=False,
    )  # fmt: skip
    parts: dict[str, Any] = {"limit_val_batches": 0}
    if how.validate_every:
        parts = {"val_check_interval": how.validate_every * how.accumulate}
    return pl.Trainer(
        max_steps=how.steps, accumulate_grad_batches=how.accumulate, precision=how.precision,
        gradient_clip_val=how.gradient_clip, strategy=strategy(how), devices=how.devices,
        num_nodes=how.nodes, accelerator="auto", callbacks=[saver, Bar()], logger=False,
        enable_model_summary=False, num_sanity_val_steps=0, use_distributed_sampler=False,
        plugins=None if how.strategy == "fsdp2" else [Whole()], **parts,
    )  # fmt: skip


def strategy(how: Training) -> Any:
    """Lightning's strategy of that name."""
    if how.strategy == "fsdp2":
        return ModelParallelStrategy(how.processes, 1, save_distributed_checkpoint=False)
    return "ddp" if how.strategy == "ddp" or how.processes > 1 else "auto"


def refuse(cell: Experiment) -> None:
    """Refuses what this machine, or Lightning, cannot do.

    Raises:
        ValueError: the message starts with the field's name.
    """
    for field, why in reasons(cell):
        raise ValueError(f"experiments.{cell.block}.{field}: {why}")


def reasons(cell: Experiment) -> Iterator[tuple[str, str]]:
    """Fields of a cell that trains, and why they cannot be kept here."""
    how = cell.regime
    assert isinstance(how, Training)  # noqa: S101 - the caller's to know
    cards = torch.cuda.device_count()
    if cards and how.devices > cards:
        yield "regime.devices", f"{how.devices} asked for, {cards} there"
    if how.processes > 1 and not cards and not torch.distributed.is_gloo_available():
        yield "regime.devices", "without a GPU several processes need gloo"
    started = int(os.environ.get("WORLD_SIZE", how.devices))  # torchrun's; Lightning starts its own
    if how.processes > 1 and started != how.processes:
        field = "nodes" if how.nodes > 1 else "devices"
        yield f"regime.{field}", (f"nodes = {how.nodes} with devices = {how.devices} are "
                                  f"{how.processes} processes, not {started}; scales/slurm.sbatch "
                                  "starts them on each node by torchrun")  # fmt: skip
    if how.batch_size % how.processes:
        shared = f"cannot be shared by devices = {how.devices}"
        many = f" on nodes = {how.nodes}" if how.nodes > 1 else ""
        yield "regime.batch_size", f"{how.batch_size} windows {shared}{many}"
    if how.precision == "16-mixed" and (not cards or how.strategy == "fsdp2"):
        yield "regime.precision", "16-mixed needs a GPU and no fsdp2; take bf16-mixed"
    if how.validate_every > how.steps:
        yield "regime.validate_every", f"{how.validate_every} is above steps = {how.steps}"
    # Modules must be the same before, in and after a step, where other code runs the model again.
    shared = cell.method.fields.get("shared_layers", 1) > 1
    shuffled = getattr(how, "shuffled", False)
    if cell.method.name not in ("full", "focus") or shuffled or shared:
        only = "is for methods full and focus alone, without shuffled gates or shared layers"
        if how.strategy == "fsdp2":
            yield "regime.strategy", f"fsdp2 {only}"
        if how.checkpoint_activations:
            yield "regime.checkpoint_activations", only
    if how.strategy == "fsdp2" and cell.method.fields.get("allocated"):
        yield "method.allocated", ("groups are shared out of a whole model; train by fsdp2, "
                                   "and share them out in what starts from that")  # fmt: skip
    if how.name == "scratch" and cell.start is not None:
        yield "start", "regime scratch starts from random weights"


class Bar(TQDMProgressBar):
    """A bar that knows its end after a resumption, too."""

    @property
    def total_train_batches(self) -> int:
        """Batches of the whole training."""
        return int(self.trainer.max_steps * self.trainer.accumulate_grad_batches)


class Whole(TorchCheckpointIO):
    """Checkpoints that are there whole or not at all: Lightning's own are moved there from another
    disk, on which a kill leaves half of one."""

    def save_checkpoint(self, checkpoint: dict[str, Any], path: Any,
                        storage_options: Any = None) -> None:  # fmt: skip
        """Writes beside the place, and renames."""
        with written(Path(path)) as part:
            torch.save(checkpoint, part)


def latest(folder: Path) -> str | None:
    """The checkpoint of the highest step among those that are whole, or None."""
    found = sorted(folder.glob("step=*.ckpt"), key=lambda path: step_of(str(path)))
    for path in reversed(found):
        if zipfile.is_zipfile(path):  # as torch writes them; what is cut short has no end
            return str(path)
        print(f"train: {path} is damaged: not used")
    return None


def step_of(checkpoint: str) -> int:
    """The step that a checkpoint's name says."""
    return int(Path(checkpoint).stem.split("=")[1])
