"""What is trained on: windows in batches that a killed run takes up again, and windows to validate
on. Apart from :mod:`experiments.texts.documents`, since Lightning takes seconds to import.

Shapes: B batch, T tokens, N windows.
"""

from __future__ import annotations

from functools import cached_property

import pytorch_lightning as pl
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, Subset, TensorDataset
from torchdata.stateful_dataloader import StatefulDataLoader

from experiments.settings import Experiment, Settings
from experiments.texts.documents import documents, training_windows

VALIDATION = 8  # documents, one window each: the course of training, not a reading


class TrainingData(pl.LightningDataModule):
    """Batches `{"input_ids": (B, T) int64}` of the regime's `steps * accumulate`, resumable.

    The loader keeps a position (torchdata), which Lightning stores in every checkpoint: a run
    resumed in the middle sees the batches that an undisturbed run would have seen. Several
    processes share every batch, so that they see together what one would; their trainer must not
    put a sampler of its own in (`use_distributed_sampler=False`).

    Args:
        cell: an experiment that trains.
        seed: of the order.
    """

    def __init__(self, cell: Experiment, seed: int, chosen: Settings) -> None:
        super().__init__()
        self.cell, self.seed, self.chosen = cell, seed, chosen

    @cached_property
    def windows(self) -> Dataset:
        """Of the training side, read once a process."""
        regime = self.cell.regime
        count = regime.steps * regime.accumulate * regime.batch_size
        return training_windows(self.cell, self.chosen, regime.context, count, self.seed)

    def train_dataloader(self) -> StatefulDataLoader:
        """A loader with `state_dict`; no workers, so its position is the trainer's. The processes
        can share a batch evenly: :mod:`experiments.settings.machine` refuses others."""
        rank, world = self._place()
        batch = self.cell.regime.batch_size
        own = Subset(self.windows, share(len(self.windows), batch, rank, world))
        return StatefulDataLoader(own, batch_size=batch // world, shuffle=False)

    def val_dataloader(self) -> DataLoader:
        """The first window of some validation documents, one a batch, the same in all processes."""
        context = self.cell.regime.context
        found = documents(self.cell.texts, "validation", self.cell.model, self.chosen)
        long = [each.tokens[:context] for each in found if len(each.tokens) >= context]
        if not long:
            raise ValueError(f"texts.{self.cell.texts}: no validation document has a window of "
                             f"{context} tokens; lower the regime's context")  # fmt: skip
        return DataLoader(Rows(torch.stack(long[:VALIDATION])), batch_size=1)

    def _place(self) -> tuple[int, int]:
        """This process's rank, and how many there are."""
        trainer = self.trainer
        return (trainer.global_rank, trainer.world_size) if trainer else (0, 1)


class Rows(TensorDataset):
    """Rows of a tensor (N, T) as `{"input_ids": (T,)}`."""

    def __getitem__(self, index: int) -> dict[str, Tensor]:  # type: ignore[override]
        return {"input_ids": self.tensors[0][index]}


def share(count: int, batch: int, rank: int, world: int) -> list[int]:
    """Places of the windows that a process takes: its part of every batch, in order."""
    part = batch // world
    return [start + rank * part + place
            for start in range(0, count, batch) for place in range(part)]  # fmt: skip
