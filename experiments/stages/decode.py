"""Stage decode: the attention of one decoding step over lists of keys, against full attention's.

In one run, at every context: torch's SDPA over a contiguous cache and the library's step for each
routing, taking turns, and right after them transformers' way of appending; seconds and bytes of
keys and values. `bound` is full attention's bytes over those that a method has to read.

Every method appends the new key and attends. Full attention has a contiguous cache of its full size
from the start, which costs it less than transformers' own (``full_copy``: the whole cache is copied
at each step), and of torch's two ways to call it the faster counts (``full``; the other is
``full_slower``).

`python -m experiments.stages.decode` writes results/<scale>/decode/table.csv.

Shape suffixes: B batch, H query heads, Hk key heads, R routings, T tokens, D head dimension,
K groups.
"""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import product
from statistics import median, quantiles
from typing import Any, NamedTuple

import pandas as pd
import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from experiments.command import measure
from experiments.kernels.synthetic import draw_membership
from experiments.kernels.timing import wait
from experiments.record import Run
from experiments.settings import Decode, DecodeRouting, Settings
from focus.attention.checks import for_query_heads
from focus.attention.decode import decode_attention
from focus.attention.dense import attend
from focus.attention.past import Past
from focus.attention.rule import Rule


@torch.no_grad()
def decode(run: Run, chosen: Settings) -> None:
    """Times every number format and context."""
    plan, rows = chosen.decode, []
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    for dtype, context in product(plan.dtypes, plan.contexts):
        # No progress bar here: its thread takes turns with the one that is timed.
        print(f"decode: {dtype}, {context} tokens", flush=True)
        layers = Layers(plan, context, getattr(torch, dtype), device, chosen.seed)
        errors = {r: error_of_a_step(layers, r) for r in plan.routings}
        stepped = [full_attention(layers, folded) for folded in (True, False)]
        stepped += [ours(layers, routing) for routing in plan.routings]
        take_turns(stepped, plan.repetitions, device)
        # Apart: what it allocates and frees at each step would slow its neighbour.
        copying = [appended_by_copy(layers)]
        take_turns(copying, plan.repetitions, device)
        rows += compared(layers, stepped + copying, errors, dtype)
    run.table(pd.DataFrame(rows), "table.csv")


@dataclass
class Stepped:
    """One method at one context: its seconds a step and the bytes of keys and values it read."""

    method: str
    routing: DecodeRouting | None
    step: Callable[[int], int]
    seconds: list[float] = field(default_factory=list)
    bytes_read: list[int] = field(default_factory=list)


class Drawn(NamedTuple):
    """What a step is given beside its query, key and value."""

    query_groups: Tensor
    key_groups: Tensor
    extra: Tensor | None


class Layers:
    """Keys and values of several layers, (1, Hk, T, D) each, and the new token's tensors."""

    def __init__(self, plan: Decode, context: int, dtype: torch.dtype,
                 device: torch.device, seed: int) -> None:  # fmt: skip
        self.plan, self.context, self.device = plan, context, device
        self.generator = torch.Generator().manual_seed(seed)
        size = 2 * plan.key_heads * context * plan.head_dim * dtype.itemsize
        self.count = max(2, min(32, plan.megabytes * 2**20 // size))
        shape = (1, plan.key_heads, context, plan.head_dim)
        self.keys = [self._draw(shape, dtype) for _ in range(self.count)]
        self.values = [self._draw(shape, dtype) for _ in range(self.count)]
        self.query = self._draw((1, plan.heads, 1, plan.head_dim), dtype)
        self.key, self.value = (self._draw((*shape[:2], 1, shape[3]), dtype) for _ in range(2))

    def _draw(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        return torch.randn(shape, generator=self.generator).to(self.device, dtype)

    def query_groups(self, routing: DecodeRouting) -> Tensor:
        """Random memberships (1, R, 1, K) of a new token as a query."""
        apart = {"layer": 1, "key_head": self.plan.key_heads, "query_head": self.plan.heads}
        return self._groups(apart[routing.routers], 1, routing.groups, routing.top_k)

    def key_groups(self, routing: DecodeRouting, tokens: int) -> Tensor:
        """Random memberships (1, R, T, K) of tokens as keys."""
        routings = 1 if routing.routers == "layer" else self.plan.key_heads
        return self._groups(routings, tokens, routing.groups, routing.key_groups)

    def _groups(self, routings: int, tokens: int, groups: int, count: int) -> Tensor:
        shape = (1, routings, tokens, groups)
        return draw_membership(shape, count, self.generator).to(self.device)

    def extra_keys(self, routing: DecodeRouting) -> Tensor | None:
        """Random places (1, 1, E) beyond the window, each once; None where there are none. In a
        shorter context fewer."""
        far = self.context - self.plan.window
        if not routing.extra_keys or far < 1:
            return None
        drawn = torch.randperm(far, generator=self.generator)[: routing.extra_keys]
        return drawn.view(1, 1, -1).to(self.device)

    def rule(self, routing: DecodeRouting) -> Rule:
        """What a query keeps."""
        plan = self.plan
        return Rule(plan.window, plan.sinks, None, routing.groups, routing.top_k,
                    routing.key_groups)  # fmt: skip


def full_attention(layers: Layers, folded: bool) -> Stepped:
    """torch's SDPA over a contiguous cache; ``folded``: the query heads of a key head as rows."""
    plan, room = layers.plan, 2 * layers.plan.repetitions + 8
    caches = [
        [torch.nn.functional.pad(x, (0, 0, 0, room)) for x in pair]
        for pair in zip(layers.keys, layers.values, strict=True)
    ]
    lengths = [layers.context] * layers.count
    query = layers.query
    if folded:
        query = query.view(1, plan.key_heads, plan.heads // plan.key_heads, plan.head_dim)

    def step(number: int) -> int:
        at = number % layers.count
        key, value = caches[at]
        end = lengths[at] = lengths[at] + 1
        key[:, :, end - 1 : end], value[:, :, end - 1 : end] = layers.key, layers.value
        scaled_dot_product_attention(
            query, key[:, :, :end], value[:, :, :end], enable_gqa=not folded
        )
        return 2 * plan.key_heads * end * plan.head_dim * key.element_size()

    return Stepped("full", None, step)


def appended_by_copy(layers: Layers) -> Stepped:
    """As transformers' DynamicCache does it: the cache is copied at every step."""
    keys, values = list(layers.keys), list(layers.values)

    def step(number: int) -> int:
        at = number % layers.count
        keys[at] = torch.cat([keys[at], layers.key], 2)
        values[at] = torch.cat([values[at], layers.value], 2)
        scaled_dot_product_attention(layers.query, keys[at], values[at], enable_gqa=True)
        return 2 * keys[at].numel() * keys[at].element_size()

    return Stepped("full_copy", None, step)


def ours(layers: Layers, routing: DecodeRouting) -> Stepped:
    """A step over lists of positions. Filing the context is not timed.

    A step's bytes are those of the keys and values that some query head needs, once a key head.
    """
    plan, pasts, held = layers.plan, [], []
    for key, value in zip(layers.keys, layers.values, strict=True):
        past, groups = Past(layers.rule(routing)), layers.key_groups(routing, layers.context)
        past.append(key, value, groups, None)
        pasts.append(past)
        held.append(groups)
    number_of = max(plan.repetitions, 2 * layers.count)
    drawn = [_draw(layers, routing) for _ in range(number_of)]
    size = 2 * plan.head_dim * layers.key.element_size()
    needed = [
        int(_kept(layers, held[n % layers.count], each).any(2).sum()) * size
        for n, each in enumerate(drawn)
    ]

    def step(number: int) -> int:
        own, past = drawn[number % number_of], pasts[number % layers.count]
        decode_attention(layers.query, layers.key, layers.value, own.query_groups, own.key_groups,
                         past, extra_keys=own.extra)  # fmt: skip
        return needed[number % number_of]

    return Stepped("ours", routing, step)


def _draw(layers: Layers, routing: DecodeRouting) -> Drawn:
    return Drawn(layers.query_groups(routing), layers.key_groups(routing, 1),
                 layers.extra_keys(routing))  # fmt: skip


def _kept(layers: Layers, groups: Tensor, own: Drawn) -> Tensor:
    """(1, Hk, H / Hk, T + 1) bool: what a first step reads, the new token last."""
    plan = layers.plan
    distance = torch.arange(layers.context, -1, -1, device=layers.device)
    near = (distance < plan.window) | (distance > layers.context - plan.sinks)
    meet = (for_query_heads(groups, own.query_groups.shape[1]) & own.query_groups).any(-1)
    if own.extra is not None:
        meet[:, :, own.extra.flatten()] = True
    meet = torch.cat([meet, meet.new_ones(*meet.shape[:2], 1)], -1)
    kept = for_query_heads(meet, plan.heads) | near
    return kept.unflatten(1, (plan.key_heads, -1))


def error_of_a_step(layers: Layers, routing: DecodeRouting) -> float:
    """Largest difference of a step's output from the definition in float64."""
    past, own = Past(layers.rule(routing)), _draw(layers, routing)
    key, value = next(zip(layers.keys, layers.values, strict=True))
    groups = layers.key_groups(routing, layers.context)
    past.append(key, value, groups, None)
    out, _ = decode_attention(layers.query, layers.key, layers.value, own.query_groups,
                              own.key_groups, past, extra_keys=own.extra)  # fmt: skip
    exact = attend(
        layers.query.double(), torch.cat([key, layers.key], 2).double(),
        torch.cat([value, layers.value], 2).double(), layers.plan.head_dim**-0.5,
        kept=_kept(layers, groups, own).flatten(1, 2)[:, :, None],
    )  # fmt: skip
    return float((out.double() - exact).abs().max())


def take_turns(stepped: list[Stepped], repetitions: int, device: torch.device) -> None:
    """Times one step of each method after the other, as often as asked, after a few to warm up.

    Every round has another order, since a step leaves its own mark on what is cached.
    """
    warm, order = max(3, repetitions // 10), random.Random(0)
    for number in range(warm + repetitions):
        for each in order.sample(stepped, len(stepped)):
            wait(device)
            started = time.perf_counter()
            read = each.step(number)
            wait(device)
            took = time.perf_counter() - started
            if number >= warm:
                each.seconds.append(took)
                each.bytes_read.append(read)


def compared(layers: Layers, stepped: list[Stepped], errors: dict[DecodeRouting, float],
             dtype: str) -> Iterator[dict[str, Any]]:  # fmt: skip
    """Table rows; the speed-up is over the faster of the calls of full attention, and 8 steps of 10
    took between ``low_s`` and ``high_s``."""
    fulls = sorted(
        (each for each in stepped if each.method == "full"), key=lambda each: median(each.seconds)
    )
    for slower in fulls[1:]:
        slower.method = "full_slower"
    fastest = median(fulls[0].seconds)
    for each in stepped:
        low, *_, high = quantiles(each.seconds, n=10)
        read, routing = median(each.bytes_read), each.routing
        yield {
            "device": layers.device.type, "context": layers.context, "dtype": dtype,
            "K": routing.groups if routing else None, "k": routing.top_k if routing else None,
            "probe": routing.probe if routing else None,
            "routers": routing.routers if routing else None,
            "extra_keys": routing.extra_keys if routing else None, "method": each.method,
            "median_s": median(each.seconds), "low_s": low, "high_s": high,
            "bytes_read": int(read), "speedup": fastest / median(each.seconds),
            "bound": median(fulls[0].bytes_read) / read,
            "error": errors.get(routing) if routing else None,
            "repetitions": len(each.seconds), "layers": layers.count,
        }  # fmt: skip


if __name__ == "__main__":
    sys.exit(measure("decode", decode))
