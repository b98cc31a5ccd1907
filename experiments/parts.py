"""Where the time of one decomposed call goes, on CPU: checks, choice, plan, calls, copies.

Shape suffixes: T tokens, H query heads, Hk key heads, D head dimension.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from experiments.synthetic import draw_tensors
from experiments.timing import Routed, Shape
from focus.attention import cost
from focus.attention.checks import validate
from focus.attention.decomposed import decomposed_attention, make_plan

FLASH = "aten::_scaled_dot_product_flash_attention_for_cpu"
COPIES = ("aten::index_select", "aten::index_copy_", "aten::copy_", "aten::cat")


def time_parts(shape: Shape, routed: Routed) -> list[dict[str, Any]]:
    """Seconds of each part of a forward call of the decomposition, one row a part."""
    generator = torch.Generator().manual_seed(0)
    query, key, value = draw_tensors(1, shape.heads, shape.key_heads, shape.tokens,
                                     shape.head_dim, shape.dtype, generator)  # fmt: skip

    def checks() -> Any:
        return validate(query, key, value, routed.membership, shape.window, 0, None, None,
                        routed.key_membership)  # fmt: skip

    x, checked = _timed(checks)
    chosen, choosing = _timed(lambda: cost.choose_lists(x))
    plan, planning = _timed(lambda: make_plan(x, [(0, shape.tokens)], *chosen))
    with profile(activities=[ProfilerActivity.CPU]) as profiled:
        _, whole = _timed(lambda: decomposed_attention(x, plan))
    spent = {event.key: event.self_cpu_time_total / 1e6 for event in profiled.key_averages()}
    calls = spent.get(FLASH, 0.0)
    copies = sum(spent.get(name, 0.0) for name in COPIES)
    parts = {
        "checks": checked, "choice": choosing, "plan": planning, "calls": calls, "copies": copies,
        "merge and masks": max(0.0, whole - calls - copies),
    }  # fmt: skip
    total = checked + choosing + planning + whole
    return [
        {
            "length": shape.tokens, "K": routed.groups, "k": routed.top_k, "probe": routed.probe,
            "path": chosen[0], "part": name, "seconds": seconds, "share": seconds / total,
        }
        for name, seconds in parts.items()
    ]  # fmt: skip


def _timed(run: Callable[[], Any]) -> tuple[Any, float]:
    started = time.perf_counter()
    result = run()
    return result, time.perf_counter() - started
