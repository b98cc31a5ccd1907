"""Where the time of one call of the compiled kernel goes.

Shape suffixes: T tokens, H query heads, Hk key heads, D head dimension.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from torch import Generator

from experiments.kernels.synthetic import draw_tensors
from experiments.kernels.timing import Routed, Shape
from focus.attention.checks import Inputs, check_arguments
from focus.attention.native import call as native


def time_parts(shape: Shape, routed: Routed) -> list[dict[str, Any]]:
    """Seconds of each part of a forward call, one row a part; none where the kernel cannot compute
    the call."""
    generator = Generator().manual_seed(0)
    tensors = draw_tensors(1, shape.heads, shape.key_heads, shape.tokens, shape.head_dim,
                           shape.dtype, generator)  # fmt: skip

    def arguments() -> Any:
        return check_arguments(*tensors, routed.membership, shape.window, 0, None, None,
                               routed.key_membership)  # fmt: skip

    if native.refusal(arguments()) is not None:
        return []
    return _rows(shape, routed, "native", _of_kernel(shape, arguments))


def _of_kernel(shape: Shape, arguments: Callable[[], Inputs]) -> dict[str, float]:
    """Seconds of the parts of a call of the compiled kernel, and what Python adds."""
    seconds: dict[str, float] = {}

    def call() -> Any:
        return native.forward(arguments(), [(0, shape.tokens)], seconds=seconds)

    call()  # warms up
    _, whole = _timed(call)
    return {"checks and memory": max(0.0, whole - sum(seconds.values())), **seconds}


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
