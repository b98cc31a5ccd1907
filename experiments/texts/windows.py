"""Training windows, in an order that the seed alone decides.

Shapes: B batch, T tokens, N windows.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.utils.data import Dataset

from experiments.settings import Experiment, Settings
from experiments.texts.documents import Document, documents


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
