"""The blocks of params.yaml that the stages exactness, speed, training and training_step read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from experiments.schema import at_least, positive
from experiments.synthetic import KINDS


def _listed(values: tuple[object, ...], name: str) -> None:
    if not values or len(set(values)) != len(values):
        raise ValueError(f"{name}: must name at least one value, and none twice, got {values}")


def _heads(heads: int, key_heads: int, head_dim: int) -> None:
    at_least(1, heads=heads, key_heads=key_heads, head_dim=head_dim)
    if heads % key_heads:
        raise ValueError(f"key_heads: {key_heads} does not divide heads = {heads}")


@dataclass(frozen=True)
class ExactnessSettings:
    """The grid of cases. k = K and the window of the whole length are always among them.

    Attributes:
        groups, top_ks, windows, sinks: values of K, k, w and the number of sinks.
        lengths: sequence lengths; kinds of groups other than balanced run at the longest.
        kinds: how tokens fall into groups (experiments.synthetic).
        dtypes: number formats of the fast path.
        heads, key_heads, head_dim: shape of the attention.
    """

    groups: tuple[int, ...]
    top_ks: tuple[int, ...]
    windows: tuple[int, ...]
    sinks: tuple[int, ...]
    lengths: tuple[int, ...]
    kinds: tuple[Literal["balanced", "unbalanced", "empty", "one", "ragged"], ...] = KINDS
    dtypes: tuple[Literal["float32", "bfloat16", "float16"], ...] = ("float32", "bfloat16")
    heads: int = 4
    key_heads: int = 2
    head_dim: int = 64

    def __post_init__(self) -> None:
        for name in ("groups", "top_ks", "windows", "lengths"):
            _listed(getattr(self, name), name)
            for value in getattr(self, name):
                at_least(1, **{name: value})
        for name in ("sinks", "kinds", "dtypes"):
            _listed(getattr(self, name), name)
        at_least(0, sinks=min(self.sinks))
        _heads(self.heads, self.key_heads, self.head_dim)


@dataclass(frozen=True)
class SpeedSettings:
    """What is timed, side by side.

    Attributes:
        lengths: sequence lengths, timed in this order.
        groups, top_ks: K and k; probes: of which kinds (multi_probe: for k > 1).
        single_from: lengths from which only symmetric k = 1 is timed.
        both_until: greatest length whose backward pass is timed too (least k only).
        quadratic_until: greatest length of methods whose memory is T x T (FlexAttention on CPU).
        window, heads, key_heads, head_dim, dtype: shape of the attention.
        seconds: time for the repetitions of one length and direction.
        most_repetitions: the most of one length; if the time is up, five have to do (two from
            16,384 tokens on).
    """

    lengths: tuple[int, ...]
    groups: tuple[int, ...] = (4, 8, 16)
    top_ks: tuple[int, ...] = (1, 2)
    probes: tuple[Literal["symmetric", "multi_probe"], ...] = ("symmetric", "multi_probe")
    single_from: int = 65536
    both_until: int = 16384
    quadratic_until: int = 2048
    window: int = 128
    heads: int = 9
    key_heads: int = 3
    head_dim: int = 64
    dtype: Literal["float32", "bfloat16", "float16"] = "float32"
    seconds: float = 20.0
    most_repetitions: int = 15

    def __post_init__(self) -> None:
        for name in ("lengths", "groups", "top_ks"):
            _listed(getattr(self, name), name)
            for value in getattr(self, name):
                at_least(1, **{name: value})
        _listed(self.probes, "probes")
        at_least(1, window=self.window)
        at_least(2, most_repetitions=self.most_repetitions)
        positive(seconds=self.seconds)
        _heads(self.heads, self.key_heads, self.head_dim)
        if max(self.top_ks) > min(self.groups):
            raise ValueError(f"top_ks: {max(self.top_ks)} is above groups = {min(self.groups)}")


@dataclass(frozen=True)
class TrainingSettings:
    """The attention of a training step, forward and backward, against full attention's.

    Attributes:
        lengths: sequence lengths, timed in this order.
        gates: training gates; quadratic_until: greatest length of those that form every pair.
        groups, top_k: K, and the groups of a token (of which only ``sparse_log`` takes notice).
        routers: one for each key head, queries and keys apart, or one a layer.
        window, sinks, heads, key_heads, head_dim, dtype: shape of the attention.
        seconds: time for the repetitions of one length.
        most_repetitions: the most of one length; if the time is up, five have to do (two from
            16,384 tokens on).
    """

    lengths: tuple[int, ...]
    gates: tuple[Literal["eq2", "log", "sparse_log", "straight_through"], ...] = (
        "log", "sparse_log",
    )  # fmt: skip
    quadratic_until: int = 4096
    groups: int = 16
    top_k: int = 1
    routers: Literal["layer", "kv_head"] = "kv_head"
    window: int = 128
    sinks: int = 4
    heads: int = 9
    key_heads: int = 3
    head_dim: int = 64
    dtype: Literal["float32", "bfloat16", "float16"] = "float32"
    seconds: float = 20.0
    most_repetitions: int = 9

    def __post_init__(self) -> None:
        for name in ("lengths", "gates"):
            _listed(getattr(self, name), name)
        at_least(1, lengths=min(self.lengths), window=self.window, top_k=self.top_k)
        at_least(0, sinks=self.sinks, quadratic_until=self.quadratic_until)
        at_least(2, most_repetitions=self.most_repetitions)
        positive(seconds=self.seconds)
        _heads(self.heads, self.key_heads, self.head_dim)
        if self.top_k > self.groups:
            raise ValueError(f"top_k: {self.top_k} is above groups = {self.groups}")


@dataclass(frozen=True)
class TrainingStepSettings:
    """A whole training step of the model, forward and backward, against full attention's.

    Attributes:
        lengths: tokens of the text, timed in this order.
        gates: training gates; quadratic_until: greatest length of those that form every pair.
        groups, top_k, window, sinks: of the routers, otherwise those of
            :meth:`focus.FocusConfig.recipe` (``log`` and ``eq2`` take no notice of top_k).
        dtype: of the model here.
        repetitions: steps of each method, taking turns.
    """

    lengths: tuple[int, ...]
    gates: tuple[Literal["eq2", "log", "sparse_log", "straight_through"], ...] = (
        "log", "sparse_log",
    )  # fmt: skip
    quadratic_until: int = 8192
    groups: int = 18
    top_k: int = 2
    window: int = 128
    sinks: int = 4
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "float32"
    repetitions: int = 2

    def __post_init__(self) -> None:
        for name in ("lengths", "gates"):
            _listed(getattr(self, name), name)
        at_least(1, groups=self.groups, top_k=self.top_k, window=self.window)
        at_least(1, repetitions=self.repetitions)
        at_least(0, sinks=self.sinks, quadratic_until=self.quadratic_until)
        # Sinkhorn balances no more groups than there are tokens; a loss needs two of these.
        at_least(max(2, self.groups), lengths=min(self.lengths))
        if self.top_k > self.groups:
            raise ValueError(f"top_k: {self.top_k} is above groups = {self.groups}")
