"""What is trained on: windows in an order that the seed alone decides, in batches that a killed run
takes up again; and windows to validate on.

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
from experiments.texts.documents import Document, documents

VALIDATION = 8  # documents, one window each: the course of training, not a reading


class WindowSequence(Dataset):
    """A fixed number of training windows in an order that the seed alone decides.

    They are all full ones of documents that have one, and do not overlap. Every window comes once
    before any comes again; each pass has an order of its own.
    """

    def __init__(self, documents: list[Document], context: int, count: int, seed: int) -> None:
        self.windows_NT = torch.cat([each.tokens.unfold(0, context, context) for each in documents])
        generator = torch.Generator().manual_seed(seed)
        total = len(self.windows_NT)
        passes = -(-count // total)
        orders = [torch.randperm(total, generator=generator) for _ in range(passes)]
        self.order = torch.cat([torch.zeros(0, dtype=torch.int64), *orders])[:count]

    def __len__(self) -> int:
        return len(self.order)

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        return {"input_ids": self.windows_NT[self.order[index]]}


def training_windows(cell: Experiment, chosen: Settings, context: int, count: int,
                     seed: int) -> WindowSequence:  # fmt: skip
    """Windows of the training side of an experiment's texts, {"input_ids": int64 (context,)}.

    Args:
        context: tokens of a window; ``count``: of windows.
        seed: of their order.

    Raises:
        ValueError: there are no training documents that long, or fewer tokens than
            ``train_tokens``.
    """
    found = training_documents(cell.texts, cell.model, chosen)
    long = [each for each in found if len(each.tokens) >= context]
    if not long:
        raise ValueError(f"texts.{cell.texts}: no training document of {len(found)} has a window "
                         f"of {context} tokens; lower the regime's context")  # fmt: skip
    return WindowSequence(long, context, count, seed)


def training_documents(name: str, model: str, chosen: Settings) -> list[Document]:
    """The training side, or what ``train_tokens`` takes of it."""
    how = chosen.texts[name]
    found = documents(name, "train", model, chosen)
    if how.train_tokens is None:
        return found
    return cut(found, how.train_tokens, how.piece, name)


def cut(found: list[Document], tokens: int, piece: int, name: str) -> list[Document]:
    """The first tokens of every document, whole pieces, evenly: of all as many as are asked for.

    Raises:
        ValueError: there is too little text.
    """
    wanted, taken = tokens // piece, [0] * len(found)
    room = [len(each.tokens) // piece for each in found]
    if sum(room) < wanted:
        raise ValueError(
            f"texts.{name}.train_tokens: {tokens} asked for, but its training documents have "
            f"{sum(room) * piece} in whole pieces of {piece}; lower it"
        )
    while wanted:
        for number, most in enumerate(room):
            if wanted and taken[number] < most:
                taken[number], wanted = taken[number] + 1, wanted - 1
    return [Document.of(each.title, each.tokens[: n * piece])
            for each, n in zip(found, taken, strict=True) if n]  # fmt: skip


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
