"""Stage retrofit: train a variant's centroids on a frozen model.

`python -m experiments.stages.retrofit --cell VARIANT` writes results/retrofit/VARIANT/: the
adapter, train.csv (loss of every step), metrics.json and run.json. Checkpoints lie outside DVC's
outs, under checkpoints/, keyed by everything the run depends on: a killed run goes on from the
last one, a changed setting starts afresh.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import shutil
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

import pandas as pd
import pytorch_lightning as pl
import torch
from dvclive.lightning import DVCLiveLogger
from pytorch_lightning.callbacks import ModelCheckpoint, TQDMProgressBar
from torch import Tensor
from transformers import PreTrainedModel

import focus
from experiments import models, settings
from experiments.data import TRAINING, BooksDataModule, manifest
from experiments.lit import Centroids
from experiments.record import Run
from experiments.settings import RetrofitSettings, Settings

CHECKPOINTS = Path("checkpoints/retrofit")


def main() -> None:
    """Command line of the stage."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cell", required=True, help="a name under `variants` in params.yaml")
    cell = parser.parse_args().cell
    chosen = settings.load()
    torch.set_num_threads(chosen.threads)
    with Run("retrofit", cell, chosen) as run:
        retrofit(run, cell, chosen)


def retrofit(run: Run, cell: str, chosen: Settings) -> None:
    """Trains one variant and records it."""
    config, training = chosen.variant(cell)
    model, _ = models.load(chosen.model.name, chosen.model.dtype)
    folder = CHECKPOINTS / cell / fingerprint(config, training, chosen)
    trained = train(model, config, training, chosen.seed, folder, run.folder / "dvclive")
    focus.save_adapter(model, run.folder / "adapter")
    record(run, trained)
    shutil.rmtree(folder)


@dataclass(frozen=True)
class Trained:
    """A finished training: its module, and where it went on from."""

    module: Centroids
    resumed: str | None


def train(model: PreTrainedModel, config: focus.FocusConfig, training: RetrofitSettings, seed: int,
          folder: Path, live: Path) -> Trained:  # fmt: skip
    """Attaches routers and trains them, or goes on from the last checkpoint in ``folder``;
    leaves the model in evaluation mode.

    Args:
        model: a pretrained model without Focus; its weights stay as they are, which is checked.
        config, training: routing, and steps, optimiser and start.
        seed: of routers and of the order of windows.
        folder: of checkpoints; the caller removes it once the result is saved.
        live: where DVCLive's metrics go.

    Raises:
        RuntimeError: a frozen weight changed.
    """
    pl.seed_everything(seed, verbose=False)
    before = weights_hash(model.state_dict().items())
    focus.attach(model, config, seed=seed)
    resumed = latest(folder)
    texts = TRAINING[training.texts]
    module = Centroids(model, training)
    data = BooksDataModule(training.context, training.batch_size, training.steps, seed, texts,
                           training.copies)  # fmt: skip
    trainer(training, folder, live).fit(module, data, ckpt_path=resumed)
    if weights_hash(frozen(model)) != before:
        raise RuntimeError("a frozen weight changed during training: this is a bug, not a result")
    model.eval()  # in training mode, routers balance over the whole sequence
    return Trained(module, resumed)


def trainer(training: RetrofitSettings, folder: Path, live: Path) -> pl.Trainer:
    """A trainer that checkpoints into ``folder`` and logs metrics with DVCLive."""
    saver = ModelCheckpoint(
        dirpath=folder, filename="{step}", every_n_train_steps=training.checkpoint_every,
        save_top_k=1, save_on_train_epoch_end=False,
    )  # fmt: skip
    logger = DVCLiveLogger(dir=str(live), dvcyaml=False, save_dvc_exp=False, report=None)
    return pl.Trainer(
        max_steps=training.steps, gradient_clip_val=training.gradient_clip, logger=logger,
        callbacks=[saver, TQDMProgressBar()], log_every_n_steps=1, enable_model_summary=False,
        num_sanity_val_steps=0, accelerator="auto", devices=1,
    )  # fmt: skip


def fingerprint(config: focus.FocusConfig, training: RetrofitSettings, chosen: Settings) -> str:
    """Names everything a training run depends on: settings, texts, seed."""
    known = [config.to_dict(), asdict(training), asdict(chosen.model), chosen.seed,
             manifest(TRAINING[training.texts])]  # fmt: skip
    text = json.dumps(known, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def latest(folder: Path) -> str | None:
    """The checkpoint of the highest step, or None."""
    found = sorted(folder.glob("step=*.ckpt"), key=lambda path: int(path.stem.split("=")[1]))
    return str(found[-1]) if found else None


def frozen(model: torch.nn.Module) -> Iterable[tuple[str, Tensor]]:
    """The pretrained weights and buffers of an attached model."""
    return ((n, t) for n, t in model.state_dict().items() if ".focus_router." not in n)


def weights_hash(tensors: Iterable[tuple[str, Tensor]]) -> str:
    """sha256 over names and bytes: equal only where every weight is bit-identical."""
    digest = hashlib.sha256()
    for name, tensor in tensors:
        digest.update(name.encode())
        digest.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy())
    return digest.hexdigest()


def record(run: Run, trained: Trained) -> None:
    """Losses, sizes and times of a finished training."""
    module, training = trained.module, trained.module.settings
    losses = pd.DataFrame({"step": range(1, len(module.losses) + 1), "loss": module.losses})
    run.table(losses, "train.csv")
    tail = losses["loss"].tail(10)
    run.metric("loss_last_10", float(tail.mean()), n=len(tail))
    run.metric("steps", len(losses))
    run.metric("train_tokens", len(losses) * training.batch_size * training.context)
    run.metric("trained_parameters", sum(p.numel() for p in module.routers))
    run.metric("weights_unchanged", 1)
    run.note("seed", run.settings.seed if run.settings else None)
    run.note("train_seconds", round(module.seconds, 1))
    run.note("resumed_from_step", step_of(trained.resumed))


def step_of(checkpoint: str | None) -> int | None:
    """The step that a checkpoint's name says."""
    return int(Path(checkpoint).stem.split("=")[1]) if checkpoint else None


if __name__ == "__main__":
    main()
