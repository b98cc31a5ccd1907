"""Attention alone on CUDA against the length (Table 6): ours and the paper's two calls beside full
attention by the same kernel, FlashAttention, and by the fastest that torch has.

Shape suffixes: B batch, T tokens, H query heads, Hk key heads, D head dimension, K groups.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from functools import partial
from statistics import median
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from experiments.kernels import timing
from experiments.kernels.timing import Method, Shape, Timed
from focus.attention import flash, varlen
from focus.attention.checks import check_arguments
from focus.attention.dense import checked

FLASH = SDPBackend.FLASH_ATTENTION
OTHERS = (SDPBackend.CUDNN_ATTENTION, SDPBackend.EFFICIENT_ATTENTION)
LENGTHS = (1024, 4096, 16384, 32768, 65536, 262144, 1048576)  # of Table 6
SHAPES = ((12, 12, 64), (32, 8, 128))  # heads, key heads, head dimension: GPT-2, Llama-3 8B
GROUPS = (4, 8, 16)
MOST = 2.5e15  # operations of full attention, beyond which a shape is left out
BOTH_UNTIL = 65536
ROUNDS = 10


def shapes(device: torch.device, longest: int) -> Iterator[Shape]:
    """All that are timed, the shortest first."""
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    for tokens in (length for length in LENGTHS if length <= longest):
        for heads, key_heads, dim in SHAPES:
            if 2.0 * tokens**2 * heads * dim <= MOST:
                yield Shape(tokens, heads, key_heads, dim, 128, dtype, device)


def run_by(kernel: SDPBackend, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Full attention by one of torch's kernels."""
    with sdpa_kernel(kernel):
        return timing.full(query, key, value)


def other_kernel(shape: Shape, seed: int) -> tuple[str, Method] | None:
    """The fastest of torch's other kernels for a shape, and its name; None where none takes it."""
    tensors, best = timing.draw(shape, seed), None
    for kernel in OTHERS:
        run = partial(run_by, kernel)
        try:
            timing.once(run, tensors, False, shape.device)
            took = timing.once(run, tensors, False, shape.device)
        except RuntimeError:  # not for this shape, dtype or machine
            continue
        if best is None or took < best[0]:
            best = took, kernel.name.lower(), run
    return best and best[1:]


def time_shape(shape: Shape, backward: bool, seconds: float, seed: int) -> list[dict[str, Any]]:
    """Rows of one length and direction. ``speedup`` is over full attention by FlashAttention, the
    kernel that the two calls have; ``full_other`` is the fastest other kernel of full attention."""
    routings = [timing.route(shape, groups, 1, "symmetric", seed) for groups in GROUPS]
    names = ["ours"] if backward else ["ours", "paper_k1"]
    timed = [Timed("full", None, partial(run_by, FLASH), [])]
    kernel = FLASH.name.lower()
    other = other_kernel(shape, seed) if shape.device.type == "cuda" else None
    if other is not None:
        timed.append(Timed("full_other", None, other[1], []))
    timed += timing.methods(shape, routings, names)
    timing.time_methods(shape, timed, backward, seconds, ROUNDS, seed)
    kernels = {"full_other": other[0]} if other else {}
    return [row | {"kernel": kernels.get(row["method"], kernel)}
            for row in timing.rows(shape, timed, backward)]  # fmt: skip


def guess_seconds(rows: list[dict[str, Any]], shape: Shape, backward: bool) -> float:
    """Seconds of one length from the next shorter one's: ``n`` times the length, ``n`` squared the
    pairs. Nothing is known of the first, which is short."""
    before = [
        row for row in rows
        if row["heads"] == shape.heads and row["length"] < shape.tokens
        and (row["direction"] == "both") == backward
    ]  # fmt: skip
    if not before:
        return 0.0
    length = max(row["length"] for row in before)
    total = sum(row["median_s"] for row in before if row["length"] == length)
    return 3 * total * (shape.tokens / length) ** 2


def parts(shape: Shape, seed: int) -> dict[str, Any]:
    """Seconds of the whole call and of its two kernel calls, of K = 8: what else there is is
    sorting, gathering and merging."""
    routed, tensors = timing.route(shape, 8, 1, "symmetric", seed), timing.draw(shape, seed)
    inside: list[float] = []
    kernel = flash.forward

    def watched(*args: Any, **options: Any) -> Any:
        timing.wait(shape.device)
        started = time.perf_counter()
        result = kernel(*args, **options)
        timing.wait(shape.device)
        inside.append(time.perf_counter() - started)
        return result

    def run(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        x = check_arguments(q, k, v, routed.membership, shape.window, 0, None, None,
                            routed.key_membership)  # fmt: skip
        return varlen.forward(checked(x))[0]

    flash.forward = watched
    try:
        wholes = [timing.once(run, tensors, False, shape.device) for _ in range(6)][1:]
    finally:
        flash.forward = kernel
    local, groups = (median(inside[i + 2 :: 2]) for i in (0, 1))
    whole = median(wholes)
    other = [w - a - b for w, a, b in zip(wholes, inside[2::2], inside[3::2], strict=True)]
    return {"length": shape.tokens, "heads": shape.heads, "head_dim": shape.head_dim, "K": 8,
            "seconds": whole, "local_s": local, "groups_s": groups, "other_s": median(other),
            "other_low_s": min(other), "other_high_s": max(other),
            "repetitions": len(other)}  # fmt: skip
