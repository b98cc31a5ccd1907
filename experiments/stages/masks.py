"""Stage masks (Figure 1's time): attention at one length under each mask whose quality is read.

In one run, taking turns: full FlashAttention, groups as the recipe, heavy hitters and the paper
have them (random, of one size), and windows that keep as many distant pairs. Routing and
the search for n-grams are not timed here: stage prefill has them.

`python -m experiments.stages.masks` writes results/<scale>/masks/table.csv.

Shape suffixes: B batch, T tokens, H query heads, Hk key heads, K groups, E further keys.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import cycle, islice
from typing import Any

import pandas as pd
import torch
from torch import Tensor

from experiments.command import measure
from experiments.kernels.synthetic import draw_membership, draw_tensors
from experiments.kernels.timing import Method, compared, full, once
from experiments.record import Run
from experiments.settings import Masks, Settings
from experiments.settings.measurements import MaskRouting
from focus.attention import focus_attention
from focus.density import PairCounts, count_pairs

Mask = tuple[Tensor, Tensor, Tensor | None]  # memberships of queries and keys, further keys


@dataclass
class Masked:
    """One mask: its columns in the table, how it is run, the pairs that it keeps, its seconds."""

    told: dict[str, Any]
    run: Method
    pairs: PairCounts | None
    seconds: list[float]


@torch.no_grad()
def time_masks(run: Run, chosen: Settings) -> None:
    """Times all masks, after a round that warms up."""
    plan = chosen.masks
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    tensors = [each.to(device) for each in draw_tensors(
        1, plan.heads, plan.key_heads, plan.length, plan.head_dim, getattr(torch, plan.dtype),
        torch.Generator().manual_seed(chosen.seed))]  # fmt: skip
    every = list(every_mask(plan, device, chosen.seed))
    for number in range(plan.repetitions + 1):
        # No progress bar here: its thread takes turns with the one that is timed.
        print(f"masks: round {number} of {plan.repetitions}", flush=True)
        for each in every:
            took = once(each.run, tensors, False, device)
            each.seconds += [took] if number else []
    run.table(pd.DataFrame([row(plan, each, every[0], device) for each in every]), "table.csv")


def row(plan: Masks, each: Masked, base: Masked, device: torch.device) -> dict[str, Any]:
    """A row of the table; ``time``: seconds over full attention's, round by round."""
    beside = compared(base.seconds, each.seconds)
    return {
        "device": device.type, "length": plan.length, "heads": plan.heads,
        "key_heads": plan.key_heads, "head_dim": plan.head_dim, "dtype": plan.dtype,
        "window": plan.window, "budget": None, "K": None, "k": None, "probe": None,
        "routers": None, "heavy": None, "allocated": None, **each.told,
        "density": 1.0 if each.pairs is None else each.pairs.density,
        "median_s": beside["median_s"], "time": 1 / beside["speedup"],
        "time_low": 1 / beside["speedup_high"], "time_high": 1 / beside["speedup_low"],
        "repetitions": len(each.seconds),
    }  # fmt: skip


def every_mask(plan: Masks, device: torch.device, seed: int) -> Iterator[Masked]:
    """Full attention, and then all masks of the plan."""
    yield Masked({"method": "full"}, full, None, [])
    generator = torch.Generator().manual_seed(seed)
    for routing in plan.routings:
        query, key = drawn(plan, routing, generator)
        further = further_keys(plan, routing.extra_keys, plan.window, generator)
        told = {"method": "groups", "K": routing.groups, "k": routing.top_k, "probe": routing.probe,
                "routers": routing.routers, "heavy": routing.heavy,
                "allocated": bool(routing.heads)}  # fmt: skip
        yield masked(plan, told, plan.window, (query, key, further), device)
    apart = torch.tensor([True, False]).expand(1, 1, plan.length, 2)
    for share in plan.windows:
        wide = window_of(share, plan.window, plan.length)
        further = further_keys(plan, plan.extra_keys, wide, generator)
        told = {"method": "window", "budget": share, "window": wide}
        yield masked(plan, told, wide, (apart, ~apart, further), device)


def masked(plan: Masks, told: dict[str, Any], window: int, mask: Mask,
           device: torch.device) -> Masked:  # fmt: skip
    """A mask ready to be timed, its pairs counted."""
    counted = count_pairs(mask[0], mask[1], window, plan.sinks, None, mask[2])
    query, key = mask[0].to(device), mask[1].to(device)
    further = None if mask[2] is None else mask[2].to(device)

    def run(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return focus_attention(q, k, v, query, window=window, sinks=plan.sinks,
                               key_membership=key, extra_keys=further)  # fmt: skip

    return Masked(told, run, counted, [])


def drawn(plan: Masks, routing: MaskRouting, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Random memberships of queries (1, R, T, K) and keys (1, Rk, T, K); with heavy hitters K + 1,
    which are in the last group alone, and every query with them."""
    heads = {"layer": 1, "key_head": plan.key_heads, "query_head": plan.heads}[routing.routers]
    keys = 1 if routing.routers == "layer" else plan.key_heads
    each = islice(cycle(routing.heads or (routing.top_k,)), heads)
    size = (1, 1, plan.length, routing.groups)
    query = torch.cat([draw_membership(size, count, generator) for count in each], 1)
    key = query
    if routing.probe == "multi_probe" or keys != heads:
        size = (1, keys, plan.length, routing.groups)
        key = draw_membership(size, routing.key_groups, generator)
    if not routing.heavy:
        return query, key
    heavy = torch.rand(1, keys, plan.length, 1, generator=generator) < routing.heavy
    key = torch.cat([key & ~heavy, heavy], -1)
    return torch.cat([query, torch.ones_like(query[..., :1])], -1), key


def further_keys(plan: Masks, count: int, window: int, generator: torch.Generator) -> Tensor | None:
    """Random places (1, T, E) before each query's window, -1 where there are none; None: none."""
    if not count:
        return None
    before = (torch.arange(plan.length) - window + 1).clamp(min=0)
    place = torch.rand(plan.length, count, generator=generator) * before[:, None]
    return place.long().masked_fill(before[:, None] == 0, -1)[None]


def window_of(share: float, window: int, tokens: int) -> int:
    """The window that keeps a share of the causal pairs beyond a narrower one, of so many
    tokens."""
    far = max(0, tokens - window)
    # Of the far * (far + 1) / 2 pairs beyond the window, all but those beyond the wider one.
    left = (1 - share) * far * (far + 1) / 2
    return tokens - math.floor((math.sqrt(8 * left + 1) - 1) / 2)


if __name__ == "__main__":
    sys.exit(measure("masks", time_masks))
