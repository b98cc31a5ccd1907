"""params.yaml as frozen, validated values: the one place where settings are read.

`python -m experiments.settings` validates the file and says what it holds; every stage calls
:func:`load` before it does anything else, so nonsense is refused before anything runs.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

from experiments.schema import at_least, build, join, positive, read_yaml, refuse_unknown, scalar
from focus.config import BALANCES, PROBES, FocusConfig

SCALES = ("smoke", "laptop", "gpu", "cluster")
# Blocks that only one stage or the analysis reads; their owners check the values.
FREE_BLOCKS = ("tolerances", "exactness", "speed", "analysis")


@dataclass(frozen=True)
class ModelSettings:
    """Which model is retrofitted, and the number format of its weights."""

    name: str
    dtype: Literal["float32", "bfloat16", "float16"] = "bfloat16"


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
    """

    steps: int
    batch_size: int = 1
    context: int = 1024
    learning_rate: float = 0.01
    weight_decay: float = 0.0
    warmup_steps: int = 10
    gradient_clip: float = 1.0
    checkpoint_every: int = 10

    def __post_init__(self) -> None:
        at_least(1, steps=self.steps, batch_size=self.batch_size)
        at_least(1, checkpoint_every=self.checkpoint_every)
        at_least(2, context=self.context)
        at_least(0, warmup_steps=self.warmup_steps, weight_decay=self.weight_decay)
        positive(learning_rate=self.learning_rate, gradient_clip=self.gradient_clip)


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
        for probe in self.probes:
            if probe not in PROBES:
                raise ValueError(f"probes: must be of {', '.join(PROBES)}, got {probe!r}")


@dataclass(frozen=True)
class LeakSettings:
    """The leak is measured for these variants and balances, on the first test documents."""

    variants: tuple[str, ...]
    balances: tuple[Literal["softmax", "sinkhorn", "frozen", "lagged"], ...]
    documents: int = 8

    def __post_init__(self) -> None:
        at_least(2, documents=self.documents)
        for name in ("variants", "balances"):
            if not getattr(self, name):
                raise ValueError(f"{name}: must name at least one")


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
        return _plain(self)


def _freeze(path: str, key: str, value: Any) -> Any:
    if isinstance(value, Mapping):
        return Block(join(path, str(key)), value)
    return tuple(_freeze(path, key, item) for item in value) if isinstance(value, list) else value


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, tuple) else value


@dataclass(frozen=True)
class Variant:
    """One way of routing, and how it is trained."""

    name: str
    focus: FocusConfig
    retrofit: RetrofitSettings


@dataclass(frozen=True)
class Settings:
    """All of params.yaml. Every block is an attribute of the same name."""

    scale: str
    seed: int
    threads: int
    model: ModelSettings
    corpus: CorpusSettings
    protocol: ProtocolSettings
    bootstrap: BootstrapSettings
    retrofit: RetrofitSettings
    variants: Mapping[str, Variant]
    topk: TopkSettings
    leak: LeakSettings
    fetch: FetchSettings = FetchSettings()
    tolerances: Block = field(default_factory=lambda: Block("tolerances", {}))
    exactness: Block = field(default_factory=lambda: Block("exactness", {}))
    speed: Block = field(default_factory=lambda: Block("speed", {}))
    analysis: Block = field(default_factory=lambda: Block("analysis", {}))

    def variant(self, name: str) -> tuple[FocusConfig, RetrofitSettings]:
        """The routing and the training of one variant; ValueError where there is none."""
        if name not in self.variants:
            raise ValueError(
                f"variants.{name}: no such variant; there are {', '.join(self.variants)}"
            )
        return self.variants[name].focus, self.variants[name].retrofit

    def plain(self) -> dict[str, Any]:
        """Everything as plain dictionaries, lists and numbers, for a result's record."""
        ready = {}
        for item in dataclasses.fields(self):
            value = getattr(self, item.name)
            if item.name == "variants":
                ready[item.name] = {name: _variant_plain(v) for name, v in value.items()}
            elif dataclasses.is_dataclass(value):
                ready[item.name] = _plain(dataclasses.asdict(value))
            else:
                ready[item.name] = _plain(value)
        return ready


def _variant_plain(variant: Variant) -> dict[str, Any]:
    return {**variant.focus.to_dict(), "retrofit": dataclasses.asdict(variant.retrofit)}


def load(path: str | Path = "params.yaml") -> Settings:
    """Reads and checks the whole file.

    Raises:
        ValueError: a setting is missing, unknown, of the wrong type or nonsense; the message
            starts with its full name, e.g. ``variants.k4.window: must be >= 1, got -1``.
    """
    return parse(read_yaml(Path(path)))


def parse(values: Mapping[str, Any]) -> Settings:
    """Settings from the mapping that params.yaml holds; see :func:`load`."""
    typed = {
        "model": ModelSettings, "corpus": CorpusSettings, "protocol": ProtocolSettings,
        "bootstrap": BootstrapSettings, "retrofit": RetrofitSettings, "topk": TopkSettings,
        "leak": LeakSettings, "fetch": FetchSettings,
    }  # fmt: skip
    refuse_unknown(values, [item.name for item in dataclasses.fields(Settings)], "")
    ready: dict[str, Any] = {"scale": _scale(values), **_counts(values)}
    for name, cls in typed.items():
        if name not in values and name != "fetch":
            raise ValueError(f"{name}: is missing")
        ready[name] = build(cls, values.get(name, {}), name)
    for name in FREE_BLOCKS:
        block = values.get(name, {})
        if not isinstance(block, Mapping):
            raise ValueError(f"{name}: must be a mapping, got {block!r}")
        ready[name] = Block(name, block)
    for name, value in ready["tolerances"].items():
        scalar(value, float, f"tolerances.{name}")
        at_least(0, **{f"tolerances.{name}": value})
    ready["variants"] = _variants(values.get("variants"), ready["retrofit"])
    settings = Settings(**ready)
    _check_together(settings)
    return settings


def _scale(values: Mapping[str, Any]) -> str:
    scale = values.get("scale", "laptop")
    if scale not in SCALES:
        raise ValueError(f"scale: must be one of {', '.join(SCALES)}, got {scale!r}")
    return scale


def _counts(values: Mapping[str, Any]) -> dict[str, int]:
    ready = {}
    for name, minimum in (("seed", 0), ("threads", 1)):
        value = values.get(name)
        if isinstance(value, bool) or not isinstance(value, int):
            raise ValueError(f"{name}: must be a whole number, got {value!r}")
        at_least(minimum, **{name: value})
        ready[name] = value
    return ready


def _variants(values: Any, common: RetrofitSettings) -> Mapping[str, Variant]:
    if not isinstance(values, Mapping) or not values:
        raise ValueError("variants: must be a mapping with at least one variant")
    ready = {}
    for name, own in values.items():
        path = f"variants.{name}"
        if not isinstance(name, str) or not name.replace("_", "").replace("-", "").isalnum():
            raise ValueError(f"{path}: a variant's name is letters, digits, - and _")
        if not isinstance(own, Mapping):
            raise ValueError(f"{path}: must be a mapping, got {own!r}")
        routing = {key: value for key, value in own.items() if key != "retrofit"}
        refuse_unknown(routing, [f.name for f in dataclasses.fields(FocusConfig)], path)
        training = build(RetrofitSettings, own.get("retrofit", {}), f"{path}.retrofit", common)
        ready[name] = Variant(name, _focus(routing, path), training)
    return MappingProxyType(ready)


def _focus(values: Mapping[str, Any], path: str) -> FocusConfig:
    try:
        return FocusConfig(**values)
    except ValueError as error:
        raise ValueError(join(path, str(error))) from error


def _check_together(settings: Settings) -> None:
    """What no block can see alone."""
    for name in settings.leak.variants:
        if name not in settings.variants:
            raise ValueError(f"leak.variants: {name!r} is no variant of this file")
    for variant in settings.variants.values():
        groups = variant.focus.num_groups
        for k in settings.topk.ks:
            if k > groups:
                raise ValueError(
                    f"topk.ks: {k} is above num_groups = {groups} of variants.{variant.name}"
                )
        if variant.retrofit.context > settings.corpus.min_tokens:
            raise ValueError(
                f"variants.{variant.name}.retrofit.context: {variant.retrofit.context} is above "
                f"corpus.min_tokens = {settings.corpus.min_tokens}; some books would give no window"
            )
    protocol = settings.protocol
    needed = protocol.context + (protocol.windows_per_document - 1) * protocol.stride
    if needed > settings.corpus.min_tokens:
        raise ValueError(
            f"protocol.windows_per_document: {protocol.windows_per_document} windows need {needed} "
            f"tokens of each document, but corpus.min_tokens is {settings.corpus.min_tokens}"
        )


def main() -> int:
    """Validates params.yaml; exit status 1 and the field's name where it is wrong."""
    try:
        settings = load()
    except ValueError as error:
        print(f"params.yaml: {error}", file=sys.stderr)
        return 1
    print(
        f"params.yaml is valid: scale {settings.scale}, seed {settings.seed}, model "
        f"{settings.model.name}, corpus {settings.corpus.source}, variants "
        f"{', '.join(settings.variants)}"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
