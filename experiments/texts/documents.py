"""Documents as tokens of a model, and the windows that readings and training take of them.

Shapes: T tokens, N windows.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from zipfile import BadZipFile

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from experiments import sources
from experiments.record import written
from experiments.settings import Experiment, Settings, Windows
from experiments.sources import models
from experiments.texts.corpus import ROOT, SIDES, named

TOKENS = Path("data/tokens")


@dataclass(frozen=True)
class Document:
    """A document: its title, its tokens, int64 of shape (T,), and 12 digits of their sha256."""

    title: str
    tokens: Tensor
    sha: str

    @classmethod
    def of(cls, title: str, tokens: Tensor) -> Document:
        """A document of these tokens."""
        digest = hashlib.sha256(tokens.numpy().astype("<i8").tobytes()).hexdigest()
        return cls(title, tokens, digest[:12])


def documents(name: str, side: str, model: str, chosen: Settings,
              opened_by: Windows | None = None) -> list[Document]:  # fmt: skip
    """A side's documents in their fixed order, as tokens of a model's tokenizer.

    Args:
        name: under ``texts``; ``side``: train, validation or test.
        model: whose tokenizer; tokens are kept under data/tokens/ and taken from there.
        opened_by: the reading that asks. Test documents open for a final one alone, so that no
            choice can be made on them.

    Raises:
        ValueError: the side may not be opened, or the stage `data` has not written it.
    """
    _refuse(name, side, chosen, opened_by)
    path = side_file(name, side)
    kept = TOKENS / model / name / f"{side}-{_key(path, model)}.npz"
    found = _load(kept)
    if found is None:
        rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
        tokenizer = models.load_tokenizer(model)
        tokens = [tokenizer(row["text"], add_special_tokens=False, verbose=False)["input_ids"]
                  for row in rows]  # fmt: skip
        _save(kept, [row["title"] for row in rows], tokens)
        found = _load(kept)
    return found or []


def _refuse(name: str, side: str, chosen: Settings, opened_by: Windows | None) -> None:
    how = named(name, chosen)
    if side not in SIDES:
        raise ValueError(f"side: must be one of {', '.join(SIDES)}, got {side!r}")
    if side == "test" and how.development:
        raise ValueError(f"texts.{name}: is for development: it has no test side, only validation")
    if side == "test" and (opened_by is None or not opened_by.final):
        raise ValueError(
            f"texts.{name}: its test documents are opened by a final reading alone (final: true)"
        )


def side_file(name: str, side: str) -> Path:
    """The file of a side; ValueError where the stage `data` has not written it."""
    path = ROOT / name / f"{side}.jsonl"
    if not path.is_file():
        raise ValueError(f"{path} is missing: run `python -m experiments.stages.data` with an "
                         f"experiment that uses texts.{name}")  # fmt: skip
    return path


def fingerprint(name: str, side: str) -> str:
    """sha256 of a side's file, for records."""
    return hashlib.sha256(side_file(name, side).read_bytes()).hexdigest()


def _key(path: Path, model: str) -> str:
    """Tells one content and tokenizer from another: a model's folder can be replaced."""
    stamp = sources.ROOT / model / "source.json"
    tokenizer = stamp.read_bytes() if stamp.is_file() else b""
    return hashlib.sha256(path.read_bytes() + b"\0" + tokenizer).hexdigest()[:16]


def _save(path: Path, titles: list[str], tokens: list[list[int]]) -> None:
    """Titles and tokens as one file, whole or not at all, whoever else writes it."""
    parts = [np.asarray(each, dtype=np.int32) for each in tokens]
    with written(path) as part, part.open("wb") as file:
        np.savez(
            file,
            tokens=np.concatenate([np.zeros(0, dtype=np.int32), *parts]),
            offsets=np.cumsum([0, *map(len, parts)], dtype=np.int64),
            titles=np.asarray(titles, dtype=np.str_),
        )


def _load(path: Path) -> list[Document] | None:
    """None: there is no such file, or it is damaged."""
    try:
        with np.load(path, allow_pickle=False) as arrays:
            tokens, offsets, titles = arrays["tokens"], arrays["offsets"], arrays["titles"]
    except (OSError, ValueError, KeyError, EOFError, BadZipFile):
        return None
    whole = torch.from_numpy(tokens.astype(np.int64))
    places = zip(titles, offsets[:-1], offsets[1:], strict=True)
    return [Document.of(str(title), whole[start:end]) for title, start, end in places]


def reading_windows(reading: Windows, name: str, model: str,
                    chosen: Settings) -> list[tuple[Document, Tensor]]:  # fmt: skip
    """The first documents that are long enough, or those after ``skip`` of them, each with its
    windows int64 (N, T), side by side from its start; opens the test side for a final reading.

    Raises:
        ValueError: too few are long enough; the message says which setting to lower.
    """
    wanted = reading.windows * reading.context
    found = documents(name, reading.side, model, chosen, opened_by=reading)
    if not found:
        raise ValueError(
            f"texts.{name}: its source has no {reading.side} documents; in a folder of FOCUS_DATA "
            f"they lie in {reading.side}/"
        )
    every = [each for each in found if len(each.tokens) >= wanted]
    long = every[reading.skip :][: reading.documents]
    if len(long) < reading.documents:
        after = f" after skip = {reading.skip}" if reading.skip else ""
        raise ValueError(
            f"documents: {reading.documents} asked for{after}, but {reading.side} of texts.{name} "
            f"has {len(every)} of at least {reading.windows} windows of {reading.context} tokens "
            f"(of {len(found)}); lower the reading's documents, windows or context, or "
            f"texts.{name}.min_characters"
        )
    return [(each, each.tokens[:wanted].view(reading.windows, reading.context)) for each in long]


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
