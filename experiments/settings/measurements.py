"""The measurements of kernels and of the whole model, which need no trained weights."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from experiments.settings.schema import (
    Count,
    Distinct,
    Dtype,
    Frozen,
    Listed,
    ModelDtype,
    Share,
    Size,
)
from focus.config import PROBES

GroupKind = Literal["balanced", "unbalanced", "empty", "one", "ragged"]
Probe = Literal["symmetric", "multi_probe"]


class Heads(Frozen):
    """The shape of an attention layer."""

    heads: Count = 9
    key_heads: Count = 3
    head_dim: Count = 64
    window: Count = 128

    @model_validator(mode="after")
    def _divides(self) -> Any:
        if self.heads % self.key_heads:
            raise ValueError(f"key_heads: {self.key_heads} does not divide heads = {self.heads}")
        return self


class Exactness(Heads):
    """Cases of the fast attention against the definition in float64.

    Attributes:
        groups, top_ks, windows, sinks: values of K, k, w and of the sinks; k = K and the window of
            the whole length are always among them.
        lengths: kinds of groups other than balanced run at the longest.
        kinds: how tokens fall into groups; dtypes: of the fast path.
    """

    groups: Distinct[Count]
    top_ks: Distinct[Count]
    windows: Distinct[Count]
    sinks: Distinct[Size]
    lengths: Distinct[Count]
    kinds: Distinct[GroupKind] = ("balanced", "unbalanced", "empty", "one")
    dtypes: Distinct[Dtype] = ("float32", "bfloat16")
    heads: Count = 4
    key_heads: Count = 2


class Speed(Heads):
    """Attention of every method by length, side by side in one run.

    Attributes:
        single_from: lengths from which only symmetric k = 1 is timed.
        both_until: greatest length whose backward pass is timed too (least k only).
        quadratic_until: greatest length of methods that form every pair under the mask.
        seconds: of the repetitions of one length and direction.
        most_repetitions: of one length; if the time is up, five have to do (two from 16,384 on).
    """

    lengths: Distinct[Count]
    groups: Distinct[Count] = (4, 8, 16)
    top_ks: Distinct[Count] = (1, 2)
    probes: Distinct[Probe] = PROBES
    single_from: Count = 65536
    both_until: Count = 16384
    quadratic_until: Count = 4096
    dtype: Dtype = "float32"
    seconds: Annotated[float, Field(gt=0)] = 20.0
    most_repetitions: Annotated[int, Field(ge=2)] = 15

    @model_validator(mode="after")
    def _fits(self) -> Speed:
        if max(self.top_ks) > min(self.groups):
            raise ValueError(f"top_ks: {max(self.top_ks)} is above groups = {min(self.groups)}")
        return self


class DecodeRouting(Frozen):
    """One routing to time: K, k, probe, who has a router, and further keys of each query."""

    groups: Count
    top_k: Count = 1
    probe: Probe = "symmetric"
    routers: Literal["layer", "key_head", "query_head"] = "layer"
    extra_keys: Size = 0

    @model_validator(mode="after")
    def _fits(self) -> DecodeRouting:
        if self.top_k > self.groups:
            raise ValueError(f"top_k: {self.top_k} is above groups = {self.groups}")
        return self

    @property
    def key_groups(self) -> int:
        """Groups that a key joins."""
        return 1 if self.probe == PROBES[1] else self.top_k


class Decode(Heads):
    """One decoding step of the attention against the length of the context.

    Attributes:
        megabytes: of caches that take turns, so that no step finds its keys in the processor's
            cache because the last one left them there.
    """

    contexts: Distinct[Count]
    routings: Distinct[DecodeRouting]
    dtypes: Distinct[Dtype] = ("float32", "bfloat16")
    sinks: Size = 4
    repetitions: Annotated[int, Field(ge=5)] = 60
    megabytes: Count = 200


class MaskRouting(DecodeRouting):
    """A mask of groups.

    Attributes:
        heavy: share of the tokens that are keys for everyone beside them.
        heads: groups of query heads, one after the other and again, ``top_k`` on average; empty:
            all have as many.
    """

    heavy: Annotated[float, Field(ge=0, le=0.5)] = 0.0
    heads: Listed[Size] = ()

    @model_validator(mode="after")
    def _shared_out(self) -> MaskRouting:
        if self.heads and sum(self.heads) != self.top_k * len(self.heads):
            raise ValueError(f"heads: have {sum(self.heads)} groups together, not top_k = "
                             f"{self.top_k} each")  # fmt: skip
        if self.heads and max(self.heads) > self.groups:
            raise ValueError(f"heads: {max(self.heads)} is above groups = {self.groups}")
        if self.heads and (self.probe != PROBES[1] or self.routers != "query_head"):
            raise ValueError("heads: go with probe multi_probe and routers query_head")
        if 0 in self.heads and not self.heavy:
            raise ValueError("heads: without heavy hitters each needs a group")
        return self


class Masks(Heads):
    """Attention of one length under the masks whose quality is read.

    Attributes:
        length: tokens; routings: masks of groups.
        windows: shares of the pairs beyond ``window`` that a wider window keeps instead.
        extra_keys: of each query, beside those windows.
        repetitions: rounds, in which all take turns.
    """

    length: Count
    routings: Distinct[MaskRouting]
    windows: Distinct[Share] = ()
    extra_keys: Size = 4
    sinks: Size = 4
    dtype: Dtype = "float32"
    repetitions: Annotated[int, Field(ge=3)] = 5


class Whole(Frozen):
    """The whole model under a mask beside the pretrained one.

    Attributes:
        model: a source with role model; texts: whose documents are read.
        experiments: whose routers are timed, each under the mask of its ``method``; none:
            ``FocusConfig.recipe()`` with random routers.
        calibration: training windows on which random routers find their potentials.
        other_dtypes: number formats that are timed after ``dtype``.
        seconds: of the rounds of one length; most_repetitions: the most rounds of one.
    """

    LATER = ("other_dtypes",)

    model: str
    texts: str
    experiments: Listed[str] = ()
    calibration: Count = 2
    calibration_context: Count = 1024
    dtype: ModelDtype = "float32"
    other_dtypes: Listed[ModelDtype] = ()
    seconds: Annotated[float, Field(gt=0)] = 40.0
    most_repetitions: Annotated[int, Field(ge=2)] = 25

    @property
    def dtypes(self) -> tuple[str, ...]:
        """All that are timed, each once."""
        return tuple(dict.fromkeys((self.dtype, *self.other_dtypes)))


class Prefill(Whole):
    """A forward pass over texts of so many tokens."""

    lengths: Distinct[Count]


class Continuation(Whole):
    """Tokens generated after contexts of so many tokens."""

    contexts: Distinct[Count]
    new_tokens: Count = 48
    most_repetitions: Annotated[int, Field(ge=2)] = 9
