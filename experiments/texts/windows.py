"""Held-out documents and training batches from what the corpus stage wrote.

Shapes: B batch, T tokens, N windows.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytorch_lightning as pl
import torch
from torch import Tensor
from torch.utils.data import Dataset
from torchdata.stateful_dataloader import StatefulDataLoader

FOLDER = Path("data/corpus")
MIXTURE = Path("data/mixture")
TRAINING = {"corpus": FOLDER, "mixture": MIXTURE}  # by `retrofit.texts`
SPLITS = ("train", "validation", "test")


@dataclass(frozen=True)
class Document:
    """A book: its title and its tokens, int64 of shape (T,)."""

    title: str
    tokens: Tensor


def save_split(path: Path, documents: list[tuple[str, list[int]]]) -> None:
    """Writes titles and tokens as one .npz: tokens int32 concatenated, offsets int64, titles.

    The bytes depend on nothing but the content (no time stamps), so that DVC sees no change
    where there is none.
    """
    arrays = {
        "tokens": np.concatenate([np.asarray(t, dtype=np.int32) for _, t in documents] or [[]]),
        "offsets": np.cumsum([0, *(len(t) for _, t in documents)], dtype=np.int64),
        "titles": np.asarray([title for title, _ in documents], dtype=np.str_),
    }
    arrays["tokens"] = arrays["tokens"].astype(np.int32)
    part = path.with_name(f".{path.name}.part")
    with part.open("wb") as file:
        np.savez(file, **arrays)
    part.replace(path)


def load_split(split: str, folder: str | Path = FOLDER) -> list[Document]:
    """The documents of one side, in their fixed order.

    Raises:
        ValueError: the split has another name than train, validation or test, or is not there
            yet.
    """
    if split not in SPLITS:
        raise ValueError(f"split: must be one of {', '.join(SPLITS)}, got {split!r}")
    path = Path(folder) / f"{split}.npz"
    if not path.is_file():
        raise ValueError(f"{path} is missing: run `python -m experiments.stages.corpus` first")
    with np.load(path, allow_pickle=False) as arrays:
        tokens, offsets, titles = arrays["tokens"], arrays["offsets"], arrays["titles"]
    whole = torch.from_numpy(tokens.astype(np.int64))
    return [
        Document(str(title), whole[start:end])
        for title, start, end in zip(titles, offsets[:-1], offsets[1:], strict=True)
    ]


def windows(document: Document | Tensor, context: int, stride: int) -> Tensor:
    """All full windows of a document, from its start: int64 of shape (N, context).

    Raises:
        ValueError: `context` or `stride` is below 1, or the document is shorter than a window.
    """
    tokens = document.tokens if isinstance(document, Document) else document
    title = document.title if isinstance(document, Document) else "document"
    if context < 1 or stride < 1:
        raise ValueError(f"context and stride must be >= 1, got {context} and {stride}")
    if len(tokens) < context:
        raise ValueError(
            f"{title}: {len(tokens)} tokens are fewer than one window of {context}; raise "
            "corpus.min_tokens or lower the context"
        )
    return tokens.unfold(0, context, stride).contiguous()


class WindowSequence(Dataset):
    """A fixed number of training windows in an order that the seed alone decides.

    Windows do not overlap. Every window comes once before any comes again; each pass has an order
    of its own. In a share ``copies`` of them, evenly spread, a passage comes twice
    (:func:`with_copy`).
    """

    def __init__(self, documents: list[Document], context: int, count: int, seed: int,
                 copies: float = 0.0) -> None:  # fmt: skip
        if not documents:
            raise ValueError("no training documents: check corpus.source and corpus.min_tokens")
        self.windows_NT = torch.cat([windows(document, context, context) for document in documents])
        generator = torch.Generator().manual_seed(seed)
        total = len(self.windows_NT)
        passes = -(-count // total)
        orders = [torch.randperm(total, generator=generator) for _ in range(passes)]
        self.order = torch.cat(orders)[:count]
        self.seed, self.copies = seed, copies

    def __len__(self) -> int:
        return len(self.order)

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        ids = self.windows_NT[self.order[index]]
        if int((index + 1) * self.copies) > int(index * self.copies):
            ids = with_copy(ids, torch.Generator().manual_seed(self.seed * 1_000_003 + index))
        return {"input_ids": ids}


def with_copy(ids: Tensor, generator: torch.Generator) -> Tensor:
    """A window (T,) in whose last third a passage of its first half stands again, in place of what
    was there: a random number of tokens between a sixteenth and three of the window."""
    total = len(ids)

    def between(low: int, high: int) -> int:
        return int(torch.randint(low, high + 1, (1,), generator=generator))

    length = between(max(1, total // 16), max(1, 3 * total // 16))
    start = between(0, total // 2 - length)
    place = between(2 * total // 3, total - length)
    out = ids.clone()
    out[place : place + length] = ids[start : start + length]
    return out


class BooksDataModule(pl.LightningDataModule):
    """Training batches `{"input_ids": (B, T) int64}`, `steps` of them, resumable at any step.

    The loader keeps a position (torchdata), which Lightning stores in every checkpoint: a run
    resumed in the middle sees the batches that an undisturbed run would have seen.

    Args:
        context: tokens T of a window.
        batch_size: windows B of a batch.
        steps: batches in all.
        seed: of the order.
        folder: where the corpus stage wrote.
        copies: share of windows in which a passage comes twice.
    """

    def __init__(
        self, context: int, batch_size: int, steps: int, seed: int, folder: str | Path = FOLDER,
        copies: float = 0.0,
    ) -> None:  # fmt: skip
        super().__init__()
        for name, value in (("context", context), ("batch_size", batch_size), ("steps", steps)):
            if value < 1:
                raise ValueError(f"{name}: must be >= 1, got {value}")
        self.context, self.batch_size, self.steps = context, batch_size, steps
        self.seed, self.folder, self.copies = seed, Path(folder), copies
        self._windows: WindowSequence | None = None

    def setup(self, stage: str | None = None) -> None:
        """Reads the training side; Lightning calls it once a process."""
        if self._windows is None:
            documents = load_split("train", self.folder)
            count = self.steps * self.batch_size
            self._windows = WindowSequence(documents, self.context, count, self.seed, self.copies)

    def train_dataloader(self) -> StatefulDataLoader:
        """A loader with `state_dict`; no workers, so its position is the trainer's."""
        self.setup()
        assert self._windows is not None  # noqa: S101 - for the type checker
        return StatefulDataLoader(self._windows, batch_size=self.batch_size, shuffle=False)


def manifest(folder: str | Path = FOLDER) -> dict[str, Any]:
    """What corpus.json says: tokenizer, splits, and every document's tokens and sha256."""
    path = Path(folder) / "corpus.json"
    if not path.is_file():
        raise ValueError(f"{path} is missing: run `python -m experiments.stages.corpus` first")
    return json.loads(path.read_text(encoding="utf-8"))
