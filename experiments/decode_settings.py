"""The blocks of params.yaml that the stages decode, prefill, continuation and generation read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from experiments.schema import at_least, positive
from focus.config import PROBES


@dataclass(frozen=True)
class DecodeRouting:
    """One routing to time: K, k, the probe, who has routers of their own: layers, key heads, or key
    heads and, for what they look into, query heads; and further keys of each query, as many as
    n-grams matched word for word give at most (:class:`focus.FocusConfig`)."""

    groups: int
    top_k: int = 1
    probe: Literal["symmetric", "multi_probe"] = "symmetric"
    routers: Literal["layer", "key_head", "query_head"] = "layer"
    extra_keys: int = 0

    def __post_init__(self) -> None:
        at_least(1, groups=self.groups, top_k=self.top_k)
        at_least(0, extra_keys=self.extra_keys)
        if self.top_k > self.groups:
            raise ValueError(f"top_k: {self.top_k} is above groups = {self.groups}")

    @property
    def key_groups(self) -> int:
        """Groups that a key joins."""
        return 1 if self.probe == PROBES[1] else self.top_k


@dataclass(frozen=True)
class DecodeSettings:
    """One decoding step of the attention, side by side, against the length of the context.

    Attributes:
        contexts: tokens in the cache.
        routings: what is timed beside full attention.
        dtypes: number formats of the cache.
        window, sinks, heads, key_heads, head_dim: shape of the attention.
        repetitions: steps of each method, taking turns.
        megabytes: of caches that take turns (those of so many layers), so that no step finds its
            keys in the processor's cache because the last one left them there.
    """

    contexts: tuple[int, ...]
    routings: tuple[DecodeRouting, ...]
    dtypes: tuple[Literal["float32", "bfloat16", "float16"], ...] = ("float32", "bfloat16")
    window: int = 128
    sinks: int = 4
    heads: int = 9
    key_heads: int = 3
    head_dim: int = 64
    repetitions: int = 60
    megabytes: int = 200

    def __post_init__(self) -> None:
        for name in ("contexts", "routings", "dtypes"):
            values = getattr(self, name)
            if not values or len(set(values)) != len(values):
                raise ValueError(f"{name}: must name at least one value, and none twice")
        at_least(2, contexts=min(self.contexts))
        at_least(5, repetitions=self.repetitions)
        at_least(1, window=self.window, key_heads=self.key_heads, head_dim=self.head_dim)
        at_least(1, megabytes=self.megabytes)
        at_least(0, sinks=self.sinks)
        if self.heads < 1 or self.heads % self.key_heads:
            raise ValueError(f"key_heads: {self.key_heads} does not divide heads = {self.heads}")


@dataclass(frozen=True)
class PrefillSettings:
    """A whole forward pass by the recipe, against the pretrained model's.

    Attributes:
        lengths: tokens of the text.
        calibration: training windows on which random routers find their potentials.
        dtype: of the model here.
        seconds: time for the rounds of one length.
        most_repetitions: the most rounds of one length; if the time is up, two have to do.
    """

    lengths: tuple[int, ...]
    calibration: int = 2
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "float32"
    seconds: float = 40.0
    most_repetitions: int = 25

    def __post_init__(self) -> None:
        _check_rounds(self, "lengths")


@dataclass(frozen=True)
class ContinuationSettings:
    """Tokens generated after a context by the recipe, against the pretrained model.

    Attributes:
        contexts: tokens in the cache.
        new_tokens: tokens generated after each.
        calibration, dtype, seconds, most_repetitions: as of :class:`PrefillSettings`.
    """

    contexts: tuple[int, ...]
    new_tokens: int = 48
    calibration: int = 2
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "float32"
    seconds: float = 40.0
    most_repetitions: int = 9

    def __post_init__(self) -> None:
        _check_rounds(self, "contexts")
        at_least(1, new_tokens=self.new_tokens)


def _check_rounds(block: PrefillSettings | ContinuationSettings, name: str) -> None:
    lengths = getattr(block, name)
    if not lengths or len(set(lengths)) != len(lengths):
        raise ValueError(f"{name}: must name at least one value, and none twice")
    at_least(1, **{name: min(lengths)}, calibration=block.calibration)
    at_least(2, most_repetitions=block.most_repetitions)
    positive(seconds=block.seconds)


@dataclass(frozen=True)
class GenerationSettings:
    """Chain-of-thought generation on GSM8K questions, in hard mode and as pretrained.

    Attributes:
        variants: whose adapters are used, each under its own config.
        trials: names under ``recipe.trials``, whose routers are taken too (`--trial`), under the
            hard masks of ``recipe.readings`` that ``readings`` names (none: all).
        questions: the first so many of the test set, with eight worked examples before each.
        batch_size: questions generated together, padded on the left.
        new_tokens: tokens generated for each, whatever they say.
        dtype: of the model here: in bfloat16 the rounding of a step and of a whole pass differ so
            much that either may choose another token.
        long_documents, long_prompt, long_tokens: held-out books that are gone on with, tokens of
            each that are given, and tokens generated.
    """

    variants: tuple[str, ...]
    trials: tuple[str, ...]
    questions: int = 8
    batch_size: int = 4
    new_tokens: int = 64
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "float32"
    long_documents: int = 1
    long_prompt: int = 4096
    long_tokens: int = 256
    readings: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not self.variants:
            raise ValueError("variants: must name at least one")
        at_least(2, questions=self.questions)
        at_least(1, batch_size=self.batch_size, new_tokens=self.new_tokens)
        at_least(1, long_documents=self.long_documents, long_prompt=self.long_prompt)
        at_least(1, long_tokens=self.long_tokens)
