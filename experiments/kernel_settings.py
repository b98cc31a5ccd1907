"""The blocks of params.yaml that the stages exactness and speed read."""

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
        quadratic_until: greatest length of methods that form every pair under the mask.
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
    quadratic_until: int = 4096
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
