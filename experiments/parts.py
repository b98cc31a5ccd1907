"""Where the time of one call goes, on CPU: of the compiled kernel, and of the decomposition into
calls of torch's kernel.

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
from focus.attention.checks import Inputs, check_arguments, check_contents
from focus.attention.decomposed import decomposed_attention, make_plan
from focus.attention.native import call as native

FLASH = "aten::_scaled_dot_product_flash_attention_for_cpu"
COPIES = ("aten::index_select", "aten::index_copy_", "aten::copy_", "aten::cat")


def time_parts(shape: Shape, routed: Routed) -> list[dict[str, Any]]:
    """Seconds of each part of a forward call, one row a part."""
    generator = torch.Generator().manual_seed(0)
    tensors = draw_tensors(1, shape.heads, shape.key_heads, shape.tokens, shape.head_dim,
                           shape.dtype, generator)  # fmt: skip

    def arguments() -> Any:
        return check_arguments(*tensors, routed.membership, shape.window, 0, None, None,
                               routed.key_membership)  # fmt: skip

    rows = _rows(shape, routed, *_of_decomposition(shape, arguments))
    if native.refusal(arguments()) is None:
        rows += _rows(shape, routed, "native", _of_kernel(shape, arguments))
    return rows


def _of_kernel(shape: Shape, arguments: Callable[[], Inputs]) -> dict[str, float]:
    """Seconds of the parts of a call of the compiled kernel, and what Python adds."""
    seconds: dict[str, float] = {}

    def call() -> Any:
        return native.forward(arguments(), [(0, shape.tokens)], seconds=seconds)

    call()  # warms up, as the decomposition is
    _, whole = _timed(call)
    return {"checks and memory": max(0.0, whole - sum(seconds.values())), **seconds}


def _of_decomposition(
    shape: Shape, arguments: Callable[[], Inputs]
) -> tuple[str, dict[str, float]]:
    """Its path, and seconds of its parts."""
    x, checked = _timed(lambda: check_contents(arguments()))
    chosen, choosing = _timed(lambda: cost.choose_lists(x))
    plan, planning = _timed(lambda: make_plan(x, [(0, shape.tokens)], *chosen))
    with profile(activities=[ProfilerActivity.CPU]) as profiled:
        decomposed_attention(x, plan)
    _, whole = _timed(lambda: decomposed_attention(x, plan))
    spent = {event.key: event.self_cpu_time_total / 1e6 for event in profiled.key_averages()}
    calls = spent.get(FLASH, 0.0)
    copies = sum(spent.get(name, 0.0) for name in COPIES)
    return chosen[0], {
        "checks": checked, "choice": choosing, "plan": planning, "calls": calls, "copies": copies,
        "merge and masks": max(0.0, whole - calls - copies),
    }  # fmt: skip


def _rows(shape: Shape, routed: Routed, path: str, parts: dict[str, float]) -> list[dict[str, Any]]:
    total = sum(parts.values())
    return [
        {
            "length": shape.tokens, "K": routed.groups, "k": routed.top_k, "probe": routed.probe,
            "path": path, "part": name, "seconds": seconds, "share": seconds / total,
        }
        for name, seconds in parts.items()
    ]  # fmt: skip


def _timed(run: Callable[[], Any]) -> tuple[Any, float]:
    started = time.perf_counter()
    result = run()
    return result, time.perf_counter() - started
