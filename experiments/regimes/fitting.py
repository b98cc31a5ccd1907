"""Fits a regime: Lightning's trainer, and checkpoints that outlive a kill."""

from __future__ import annotations

import logging
import warnings
import zipfile
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
import torch
from lightning_fabric.plugins.io.torch_io import TorchCheckpointIO
from pytorch_lightning.callbacks import ModelCheckpoint, TQDMProgressBar
from pytorch_lightning.strategies import ModelParallelStrategy

from experiments.record import written
from experiments.regimes.base import Regime
from experiments.settings import Training


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
