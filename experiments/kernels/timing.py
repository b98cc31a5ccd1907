"""Timing attention methods side by side, on CPU or CUDA. Needs nothing but torch and the library.

All methods of a setting take turns, so that whatever else the machine does falls on all alike.

Shape suffixes: B batch, T tokens, H query heads, Hk key heads, D head dimension, K groups.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from experiments.kernels.paper_k1 import paper_k1_attention
from experiments.kernels.synthetic import draw_membership, draw_tensors
from focus.attention import focus_attention
from focus.density import count_pairs

Method = Callable[[Tensor, Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class Shape:
    """An attention call's sizes."""

    tokens: int
    heads: int
    key_heads: int
    head_dim: int
    window: int
    dtype: torch.dtype
    device: torch.device


@dataclass(frozen=True)
class Routed:
    """A routing to time: K, k, how keys are routed, and its memberships (1, T, K)."""

    groups: int
    top_k: int
    probe: str
    membership: Tensor
    key_membership: Tensor | None
    density: float


@dataclass
class Timed:
    """One method's seconds, and the memory its first call took at most."""

    method: str
    routed: Routed | None
    run: Method
    seconds: list[float]
    peak_mb: float | None = None


def route(shape: Shape, groups: int, top_k: int, probe: str, seed: int) -> Routed:
    """Random balanced memberships, and the share of causal pairs that they keep."""
    sizes = (1, shape.tokens, groups)
    own = draw_membership(sizes, top_k, _generator(shape, seed))
    keys = None
    if probe == "multi_probe":  # from the same scores: a key's one group is its query's first
        keys = draw_membership(sizes, 1, _generator(shape, seed))
    counts = count_pairs(own[:, None], None if keys is None else keys[:, None], shape.window, 0)
    return Routed(groups, top_k, probe, own, keys, counts.density)


def draw(shape: Shape, seed: int) -> list[Tensor]:
    """Query, key and value of a shape, on its device."""
    return draw_tensors(1, shape.heads, shape.key_heads, shape.tokens, shape.head_dim, shape.dtype,
                        _generator(shape, seed))  # fmt: skip


def _generator(shape: Shape, seed: int) -> torch.Generator:
    return torch.Generator(shape.device).manual_seed(seed)


def full(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Causal FlashAttention, as torch's scaled_dot_product_attention runs it."""
    return scaled_dot_product_attention(query, key, value, is_causal=True, enable_gqa=True)


def window_alone(shape: Shape) -> Method:
    """The sliding window: queries are all in one group, and keys in another."""
    first = torch.tensor([True, False], device=shape.device)

    def run(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        own = first.expand(len(query), shape.tokens, 2)
        return focus_attention(query, key, value, own, window=shape.window, key_membership=~own)

    return run


def methods(shape: Shape, routings: list[Routed], names: list[str]) -> list[Timed]:
    """The named methods, once for each routing where they depend on it."""
    ready = []
    if "full" in names:
        ready.append(Timed("full", None, full, []))
    if "window" in names:
        ready.append(Timed("window", None, window_alone(shape), []))
    return ready + [
        Timed(name, routed, _routed_method(name, routed, shape.window), [])
        for routed in routings
        for name in ("ours", "stripes", "paper_k1")
        if name in names and not (name == "paper_k1" and routed.top_k > 1)
    ]


def _routed_method(name: str, routed: Routed, window: int) -> Method:
    if name == "paper_k1":
        group = routed.membership[0].int().argmax(-1)
        return lambda q, k, v: paper_k1_attention(q, k, v, group, window)
    backend = {"ours": "auto"}.get(name, name)
    return lambda q, k, v: focus_attention(
        q, k, v, routed.membership, window=window, key_membership=routed.key_membership,
        backend=backend,
    )  # fmt: skip


def time_methods(
    shape: Shape, timed: list[Timed], backward: bool, seconds: float, most: int, seed: int
) -> None:
    """Fills in seconds and memory: rounds of all methods until the time is up, at least FEWEST (two
    of long sequences); ``most`` bounds both."""
    tensors = draw(shape, seed)
    end = None
    for number in range(most + 1):
        started = time.perf_counter()
        for each in timed:
            peak = Peak(shape.device) if number == 0 else None
            took = once(each.run, tensors, backward, shape.device)
            if peak is not None:
                each.peak_mb = peak.megabytes()
            if number > 0 or shape.tokens >= LONG:
                each.seconds.append(took)
        end = end or started + seconds
        enough = number >= (1 if shape.tokens >= LONG else FEWEST)
        if enough and time.perf_counter() + (time.perf_counter() - started) > end:
            return


LONG = 16384  # tokens from which the first round is counted too: it is warm enough
FEWEST = 5  # rounds of shorter sequences, whatever they take


def once(run: Method, tensors: list[Tensor], backward: bool, device: torch.device) -> float:
    """Seconds of one call, with its backward pass if asked."""
    leaves = [x.detach().requires_grad_(backward) for x in tensors]
    wait(device)
    started = time.perf_counter()
    out = run(*leaves)
    if backward:
        out.backward(tensors[0])
    wait(device)
    return time.perf_counter() - started


def wait(device: torch.device) -> None:
    """Until all work given to the device is done."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def compared(full: list[float], own: list[float]) -> dict[str, float]:
    """Median and range of a method's seconds, and of how many times as fast as full attention it
    was, round by round."""
    ratios = [a / b for a, b in zip(full, own, strict=True)]
    return {
        "median_s": median(own), "low_s": min(own), "high_s": max(own),
        "speedup": median(ratios), "speedup_low": min(ratios), "speedup_high": max(ratios),
    }  # fmt: skip


class Peak:
    """Largest memory since it was made, above what was in use then."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        if device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(device)
            self.before: float | None = torch.cuda.memory_allocated(device) / 2**20
            return
        self.before = _status("VmRSS")
        try:
            # Linux: sets the high-water mark back to what is resident now.
            Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
        except OSError:
            self.before = None

    def megabytes(self) -> float | None:
        """In MiB; None where the system does not tell."""
        if self.before is None:
            return None
        cuda = self.device.type == "cuda"
        most = torch.cuda.max_memory_allocated(self.device) / 2**20 if cuda else _status("VmHWM")
        return None if most is None else max(0.0, most - self.before)


def _status(name: str) -> float | None:
    try:
        lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    except OSError:
        return None
    found = [line.split()[1] for line in lines if line.startswith(f"{name}:")]
    return int(found[0]) / 1024 if found else None


def rows(shape: Shape, timed: list[Timed], backward: bool) -> Iterator[dict[str, Any]]:
    """Table rows: times, speed-up over full attention and the bound that density sets."""
    fulls = [median(each.seconds) for each in timed if each.method == "full" and each.seconds]
    for each in timed:
        if not each.seconds:
            continue
        middle = median(each.seconds)
        density = _density(shape, each)
        speedup = fulls[0] / middle if fulls else None
        # Two products of 2 D operations a pair; the backward pass makes five.
        operations = density * _causal_pairs(shape.tokens) * shape.heads * 4 * shape.head_dim
        operations *= 3.5 if backward else 1.0
        routed = each.routed
        yield {
            "device": shape.device.type, "length": shape.tokens,
            "K": routed.groups if routed else None, "k": routed.top_k if routed else None,
            "probe": routed.probe if routed else None, "window": shape.window,
            "heads": shape.heads, "key_heads": shape.key_heads, "head_dim": shape.head_dim,
            "dtype": str(shape.dtype).removeprefix("torch."), "method": each.method,
            "direction": "both" if backward else "forward", "median_s": middle,
            "low_s": min(each.seconds), "high_s": max(each.seconds), "speedup": speedup,
            "density": density, "bound": 1 / density,
            "share_of_bound": None if speedup is None else speedup * density,
            "tflops": operations / middle / 1e12, "peak_mb": each.peak_mb,
            "repetitions": len(each.seconds),
        }  # fmt: skip


def _density(shape: Shape, each: Timed) -> float:
    if each.routed is not None:
        return each.routed.density
    if each.method.startswith("full"):
        return 1.0
    window = min(shape.window, shape.tokens)
    kept = window * (window + 1) / 2 + (shape.tokens - window) * window
    return kept / _causal_pairs(shape.tokens)


def _causal_pairs(tokens: int) -> float:
    return tokens * (tokens + 1) / 2
