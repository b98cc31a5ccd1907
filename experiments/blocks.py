"""The blocks of params.yaml, one frozen dataclass each; a nonsense value raises with its name."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from experiments.schema import at_least, join, positive
from focus.config import BALANCES, PROBES


@dataclass(frozen=True)
class ModelSettings:
    """Which model is retrofitted, and the number format of its weights (see models.load)."""

    name: str
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"


@dataclass(frozen=True)
class CorpusSettings:
    """Which texts, and how documents go to the three sides.

    Attributes:
        source: a name in sources.yaml with role `corpus`, or a folder of texts in $FOCUS_DATA.
        test_every, validation_every: every n-th document (in a fixed order) is held out; a source
            that has its own splits keeps them.
        min_tokens: shorter documents are left out.
        max_overlap: two documents that share more than this part of the smaller one's 8-word
            sequences count as one book.
        max_documents: at most so many documents a side (null: all of them).
    """

    source: str
    test_every: int = 4
    validation_every: int = 9
    min_tokens: int = 4096
    max_overlap: float = 0.05
    max_documents: int | None = None

    def __post_init__(self) -> None:
        at_least(2, test_every=self.test_every, validation_every=self.validation_every)
        at_least(2, min_tokens=self.min_tokens)
        if not 0 < self.max_overlap <= 1:
            raise ValueError(f"max_overlap: must be above 0 and at most 1, got {self.max_overlap}")
        if self.max_documents is not None:
            at_least(1, max_documents=self.max_documents)


@dataclass(frozen=True)
class ProtocolSettings:
    """The perplexity protocol: every figure that is called a perplexity follows it.

    Attributes:
        context: tokens of a window.
        stride: tokens from one window's start to the next.
        score_from: first position of a window that is scored (1: all that have a token before).
        documents: held-out documents.
        windows_per_document: windows of each, from its start.
    """

    context: int
    stride: int
    score_from: int = 1
    documents: int = 8
    windows_per_document: int = 2

    def __post_init__(self) -> None:
        at_least(2, context=self.context, documents=self.documents)
        at_least(1, stride=self.stride, score_from=self.score_from)
        at_least(1, windows_per_document=self.windows_per_document)
        if self.score_from >= self.context:
            raise ValueError(
                f"score_from: must be below context = {self.context}, got {self.score_from}"
            )


@dataclass(frozen=True)
class BootstrapSettings:
    """Intervals by resampling documents."""

    samples: int = 10000
    confidence: float = 0.95

    def __post_init__(self) -> None:
        at_least(100, samples=self.samples)
        if not 0.5 <= self.confidence < 1:
            raise ValueError(f"confidence: must be at least 0.5 and below 1, got {self.confidence}")


@dataclass(frozen=True)
class RetrofitSettings:
    """Training of the centroids.

    Attributes:
        steps, batch_size, context: optimiser steps, windows a step, tokens of a window.
        learning_rate: highest rate (after the warm-up, then a cosine down to zero).
        weight_decay: of AdamW, on the routers alone.
        warmup_steps: steps of the linear rise.
        gradient_clip: largest gradient norm.
        checkpoint_every: steps between two checkpoints (what a killed run loses at most).
        loss: ``next_token``, or ``distil``: the divergence of the model's predictions from those of
            the pretrained one.
        temperature_start: the routers' temperature at the first step, from which it goes
            geometrically to the variant's own at the last (null: it stays).
        hard_from: share of the steps after which the model runs under the hard mask itself (gate
            ``straight_through``), its gradient that of the ``log`` gate (null: never).
        hard_top_ks: groups a query, taken in turn by those steps; keys have one.
        texts: windows of the ``corpus``, or of the ``mixture`` of several.
        copies: share of windows in which a passage comes twice, far apart: what texts rarely ask of
            routers, to find a passage that is being copied, they learn from these.
    """

    steps: int
    batch_size: int = 1
    context: int = 1024
    learning_rate: float = 0.01
    weight_decay: float = 0.0
    warmup_steps: int = 10
    gradient_clip: float = 1.0
    checkpoint_every: int = 10
    loss: Literal["next_token", "distil"] = "next_token"
    temperature_start: float | None = None
    hard_from: float | None = None
    hard_top_ks: tuple[int, ...] = (1, 2, 4)
    texts: Literal["corpus", "mixture"] = "corpus"
    copies: float = 0.0

    def __post_init__(self) -> None:
        at_least(1, steps=self.steps, batch_size=self.batch_size)
        if self.hard_from is not None and not 0 <= self.hard_from <= 1:
            raise ValueError(f"hard_from: must be between 0 and 1, got {self.hard_from}")
        if not 0 <= self.copies <= 1:
            raise ValueError(f"copies: must be between 0 and 1, got {self.copies}")
        if not self.hard_top_ks or min(self.hard_top_ks) < 1:
            raise ValueError(f"hard_top_ks: must name numbers >= 1, got {list(self.hard_top_ks)}")
        at_least(1, checkpoint_every=self.checkpoint_every)
        if self.temperature_start is not None:
            positive(temperature_start=self.temperature_start)
        at_least(2, context=self.context)
        at_least(0, warmup_steps=self.warmup_steps, weight_decay=self.weight_decay)
        positive(learning_rate=self.learning_rate, gradient_clip=self.gradient_clip)


@dataclass(frozen=True)
class MixtureSettings:
    """Training texts of several kinds.

    Attributes:
        sources: corpora of sources.yaml; as much of each.
        tokens: of each source.
        piece: documents are cut to whole pieces of so many tokens, and shorter ones left out.
    """

    sources: tuple[str, ...]
    tokens: int = 300_000
    piece: int = 2048

    def __post_init__(self) -> None:
        at_least(2, piece=self.piece)
        at_least(self.piece, tokens=self.tokens)
        if not self.sources or len(set(self.sources)) != len(self.sources):
            raise ValueError(f"sources: must name at least one, and none twice, got {self.sources}")


@dataclass(frozen=True)
class TopkSettings:
    """Which hard masks are evaluated: each k, with each balance and each probe."""

    ks: tuple[int, ...]
    balances: tuple[str, ...] = ("sinkhorn", "causal")
    probes: tuple[str, ...] = ("symmetric",)

    def __post_init__(self) -> None:
        for name in ("ks", "balances", "probes"):
            values = getattr(self, name)
            if not values:
                raise ValueError(f"{name}: must name at least one value, got an empty list")
            if len(set(values)) != len(values):
                raise ValueError(f"{name}: names a value twice: {list(values)}")
        for k in self.ks:
            if k < 1:
                raise ValueError(f"ks: every k must be >= 1, got {k}")
        for name, known in (("balances", BALANCES), ("probes", PROBES)):
            for value in getattr(self, name):
                if value not in known:
                    raise ValueError(f"{name}: must be of {', '.join(known)}, got {value!r}")


@dataclass(frozen=True)
class LeakSettings:
    """The leak is measured for these variants and balances, on the first test documents.

    Attributes:
        variants: whose routers, each under its own config.
        trials: names under ``recipe.trials``, whose routers are measured too (`--trial`), under the
            hard masks of ``recipe.readings`` that ``readings`` names (none: all).
    """

    variants: tuple[str, ...]
    balances: tuple[Literal["softmax", "sinkhorn", "causal"], ...]
    trials: tuple[str, ...]
    documents: int = 8
    readings: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        at_least(2, documents=self.documents)
        for name in ("variants", "balances"):
            if not getattr(self, name):
                raise ValueError(f"{name}: must name at least one")


@dataclass(frozen=True)
class ControlsSettings:
    """One variant's trained routers are held against routings that learnt nothing.

    Attributes:
        variant: whose routers.
        kinds: random routers, groups by position, by token identity, the window alone.
        top_ks: hard masks; at most half the groups, so that the window alone can be told apart.
        calibration: training windows on which random routers find their potentials.
    """

    variant: str
    kinds: tuple[Literal["random", "position", "token", "window"], ...]
    top_ks: tuple[int, ...] = (1, 2)
    calibration: int = 4

    def __post_init__(self) -> None:
        at_least(1, calibration=self.calibration)
        for name in ("kinds", "top_ks"):
            values = getattr(self, name)
            if not values or len(set(values)) != len(values):
                raise ValueError(f"{name}: must name at least one, and none twice, got {values}")
        for k in self.top_ks:
            at_least(1, top_ks=k)


@dataclass(frozen=True)
class FetchSettings:
    """What is fetched beside the model and the corpus, and whether a moving target may be.

    Attributes:
        also: further names of sources.yaml.
        allow_unpinned: take hub sources whose revision is a branch.
    """

    also: tuple[str, ...] = ()
    allow_unpinned: bool = False


class Block(Mapping[str, Any]):
    """A read-only mapping whose values can be had as attributes; for the free blocks."""

    def __init__(self, name: str, values: Mapping[str, Any]) -> None:
        self._name, self._values = name, {key: _freeze(name, key, values[key]) for key in values}

    def __getitem__(self, key: str) -> Any:
        return self._values[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __getattr__(self, key: str) -> Any:
        if key.startswith("_"):
            raise AttributeError(key)
        if key not in self._values:
            raise AttributeError(f"{self._name}.{key}: is missing in params.yaml")
        return self._values[key]

    def plain(self) -> dict[str, Any]:
        """The values as plain dictionaries and lists."""
        return plain(self)


def _freeze(path: str, key: str, value: Any) -> Any:
    if isinstance(value, Mapping):
        return Block(join(path, str(key)), value)
    return tuple(_freeze(path, key, item) for item in value) if isinstance(value, list) else value


def plain(value: Any) -> Any:
    """Ordinary dictionaries and lists from mappings and tuples, all the way down."""
    if isinstance(value, Mapping):
        return {key: plain(item) for key, item in value.items()}
    return [plain(item) for item in value] if isinstance(value, tuple) else value
