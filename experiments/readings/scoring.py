"""Perplexity by the pinned protocol, and intervals over documents by paired bootstrap.

Shapes: N windows, T tokens, S settings, C documents, R resamples.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from torch import Tensor
from transformers import PreTrainedModel

from experiments.data import Document, load_split, windows
from experiments.record import write_json
from experiments.settings import BootstrapSettings, ProtocolSettings


@dataclass(frozen=True)
class DocumentScore:
    """Summed negative log-likelihood (nats) of a document's scored tokens, and their number."""

    title: str
    nll: float
    tokens: int


@dataclass(frozen=True)
class Interval:
    """A value with its bootstrap interval."""

    value: float
    low: float
    high: float


def protocol_windows(
    protocol: ProtocolSettings, split: str = "test", name: str = "protocol"
) -> list[tuple[str, Tensor]]:
    """Title and windows (N, T) of each document that the protocol scores, from its start.

    Args:
        protocol: of documents, context and stride.
        split: a side of the corpus.
        name: of the block in params.yaml, for the error.

    Raises:
        ValueError: the split has fewer documents than ``protocol.documents``.
    """
    documents = load_split(split)
    if len(documents) < protocol.documents:
        raise ValueError(
            f"{name}.documents: {protocol.documents} asked for, the {split} split has "
            f"{len(documents)}; lower it or change corpus.{split}_every"
        )
    return [(d.title, _first_windows(d, protocol)) for d in documents[: protocol.documents]]


def _first_windows(document: Document, protocol: ProtocolSettings) -> Tensor:
    every = windows(document, protocol.context, protocol.stride)
    return every[: protocol.windows_per_document]


@torch.no_grad()
def token_nll(logits: Tensor, input_ids: Tensor, score_from: int) -> Tensor:
    """Negative log-likelihood (nats, float32) of tokens ``score_from``.. of a window.

    Args:
        logits: (1, T, vocabulary); input_ids: (1, T).
    """
    predicted = logits[0, score_from - 1 : -1].float()
    return torch.nn.functional.cross_entropy(predicted, input_ids[0, score_from:], reduction="none")


@torch.no_grad()
def score_documents(
    model: PreTrainedModel,
    documents: Sequence[tuple[str, Tensor]],
    score_from: int,
    after_window: Callable[[], None] | None = None,
) -> list[DocumentScore]:
    """Scores each document's windows one at a time, so that no result hangs on the batch.

    Args:
        model: a causal LM, in the mode that is to be scored.
        documents: as :func:`protocol_windows` gives them.
        score_from: first scored position of a window.
        after_window: called after each window (progress, density).
    """
    scores = []
    for title, windows_NT in documents:
        nll, tokens = 0.0, 0
        for window in windows_NT:
            input_ids = window.unsqueeze(0).to(model.device)
            losses = token_nll(model(input_ids, use_cache=False).logits, input_ids, score_from)
            nll += float(losses.double().sum())
            tokens += losses.numel()
            if after_window is not None:
                after_window()
        scores.append(DocumentScore(title, nll, tokens))
    return scores


def perplexity(scores: Sequence[DocumentScore]) -> float:
    """exp(total nats / total tokens)."""
    return float(np.exp(sum(s.nll for s in scores) / sum(s.tokens for s in scores)))


def perplexity_interval(
    scores: Sequence[DocumentScore], bootstrap: BootstrapSettings, seed: int
) -> Interval:
    """Perplexity with a percentile interval over resampled documents."""
    logs = _resampled_log_perplexity(scores, bootstrap, seed)
    return _interval(perplexity(scores), np.exp(logs), bootstrap)


def relative_change(
    scores: Sequence[DocumentScore],
    baseline: Sequence[DocumentScore],
    bootstrap: BootstrapSettings,
    seed: int,
) -> Interval:
    """ppl / baseline ppl - 1, both on the same resampled documents (paired).

    Raises:
        ValueError: the two were not scored on the same documents.
    """
    if [(s.title, s.tokens) for s in scores] != [(s.title, s.tokens) for s in baseline]:
        raise ValueError("a paired comparison needs the same documents and tokens on both sides")
    ours = _resampled_log_perplexity(scores, bootstrap, seed)
    theirs = _resampled_log_perplexity(baseline, bootstrap, seed)
    value = perplexity(scores) / perplexity(baseline) - 1
    return _interval(value, np.expm1(ours - theirs), bootstrap)


def _resampled_log_perplexity(
    scores: Sequence[DocumentScore], bootstrap: BootstrapSettings, seed: int
) -> np.ndarray:
    nll = np.array([s.nll for s in scores])
    tokens = np.array([s.tokens for s in scores])
    drawn = np.random.default_rng(seed).integers(len(scores), size=(bootstrap.samples, len(scores)))
    return nll[drawn].sum(-1) / tokens[drawn].sum(-1)


def ratio_interval(
    above: Sequence[float], below: Sequence[float], bootstrap: BootstrapSettings, seed: int
) -> Interval:
    """Ratio of two sums over documents, with a percentile interval over resampled documents
    (paired)."""
    tops, bottoms = np.asarray(above, dtype=float), np.asarray(below, dtype=float)
    drawn = np.random.default_rng(seed).integers(len(tops), size=(bootstrap.samples, len(tops)))
    resampled = tops[drawn].sum(-1) / bottoms[drawn].sum(-1)
    return _interval(float(tops.sum() / bottoms.sum()), resampled, bootstrap)


def mean_interval(values: Sequence[float], bootstrap: BootstrapSettings, seed: int) -> Interval:
    """Mean over documents with a percentile interval over resampled documents."""
    array = np.asarray(values, dtype=float)
    drawn = np.random.default_rng(seed).integers(len(array), size=(bootstrap.samples, len(array)))
    return _interval(float(array.mean()), array[drawn].mean(-1), bootstrap)


def median_interval(values: Sequence[float], bootstrap: BootstrapSettings, seed: int) -> Interval:
    """Median with a percentile interval over resampled values."""
    array = np.asarray(values, dtype=float)
    drawn = np.random.default_rng(seed).integers(len(array), size=(bootstrap.samples, len(array)))
    return _interval(float(np.median(array)), np.median(array[drawn], -1), bootstrap)


def _interval(value: float, resampled: np.ndarray, bootstrap: BootstrapSettings) -> Interval:
    tail = (1 - bootstrap.confidence) / 2
    low, high = np.quantile(resampled, [tail, 1 - tail])
    return Interval(value, float(low), float(high))


class Partial:
    """Finished parts of a long evaluation, kept on disk so that a killed run goes on from them.

    Args:
        path: a JSON file outside DVC's outs.
        fingerprint: what the parts depend on; a file with another one is started afresh.
    """

    def __init__(self, path: Path, fingerprint: str) -> None:
        self.path, self.fingerprint = path, fingerprint
        self.parts: dict[str, dict] = {}
        if path.is_file():
            stored = json.loads(path.read_text())
            if stored.get("fingerprint") == fingerprint:
                self.parts = stored["parts"]

    def get(self, name: str, compute: Callable[[], dict]) -> dict:
        """The part of that name, computed and stored if it is not there yet."""
        if name not in self.parts:
            self.parts[name] = compute()
            self._write()
        return self.parts[name]

    def forget(self, name: str) -> None:
        """Has the part of that name computed again."""
        self.parts.pop(name, None)

    def _write(self) -> None:
        write_json(self.path, {"fingerprint": self.fingerprint, "parts": self.parts})

    def done(self) -> None:
        """Removes the file: the stage's results stand now."""
        self.path.unlink(missing_ok=True)


def score_to_plain(scores: Sequence[DocumentScore]) -> list[dict]:
    """Scores as JSON values."""
    return [asdict(score) for score in scores]


def score_from_plain(values: Sequence[dict]) -> list[DocumentScore]:
    """Scores from JSON values."""
    return [DocumentScore(**value) for value in values]


def progress() -> Progress:
    """A progress bar with elapsed and remaining time."""
    return Progress(
        TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(),
        TimeRemainingColumn(),
    )  # fmt: skip
