"""Checks every CUDA path against the definition, then times attention up to a million tokens.

NOT YET RUN ON A GPU: written from the operators' signatures; its planning, packing, codes, merge,
gradients, time budget and report are tested on CPU (`--device cpu` rehearses the whole).

    python -m tests.gpu.run [--seconds 480] [--out results/gpu]

Needs torch and transformers only. Writes one JSON file with hardware, driver, versions, clocks,
checks and timings, anew after every step, so a run that is cut short leaves what it measured. Exit
status 1 if a check failed.

Shape suffixes: B batch, T tokens, H query heads, Hk key heads, D head dimension, K groups.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import torch
import transformers
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from experiments.kernels import timing
from experiments.kernels.synthetic import draw_membership, draw_tensors, relative_error
from experiments.kernels.timing import Shape, Timed, full
from focus import dense_attention, focus_attention
from focus.attention import flash, operator, varlen
from focus.attention.checks import check_arguments
from focus.attention.dense import validate
from focus.config import GATES
from tests.attention.rehearsal import rehearsed
from tests.gpu import steps

KERNELS = (SDPBackend.FLASH_ATTENTION, SDPBackend.CUDNN_ATTENTION, SDPBackend.EFFICIENT_ATTENTION)
LENGTHS = (1024, 4096, 16384, 65536, 262144, 1048576)
SHAPES = ((32, 8, 128), (12, 12, 64))  # heads, key heads, head dimension
GROUPS = (8, 16, 4)
BOTH_UNTIL = 65536
SMI = "name,driver_version,clocks.sm,clocks.mem,clocks.max.sm,clocks.max.mem,power.limit"


class Budget:
    """Seconds that are left, and whether a step of a guessed length still fits."""

    def __init__(self, seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock, self._end = clock, clock() + seconds

    @property
    def left(self) -> float:
        """Seconds until the budget ends; negative once it has."""
        return self._end - self._clock()

    def allows(self, guess: float) -> bool:
        """Whether a step that takes ``guess`` seconds would end in time."""
        return guess <= self.left


@dataclass(frozen=True)
class Check:
    """One case that a path is checked on."""

    backend: str = "varlen"
    tokens: int = 517
    groups: int = 8
    top_k: int = 1
    key_top_k: int | None = None
    window: int = 128
    sinks: int = 0
    heads: int = 8
    key_heads: int = 2
    dim: int = 64
    dtype: str = "bfloat16"
    kind: str = "balanced"
    padding: str | None = None
    per_head: bool = False
    extra: int = 0  # further keys of each query


def checks() -> Iterator[Check]:
    """Every path and what it must handle."""
    for backend in ("varlen", "auto", "stripes"):
        for dim in (64, 128):
            yield Check(backend, dim=dim)
            yield Check(backend, dim=dim, dtype="float16", top_k=2, sinks=4)
        yield Check(backend, groups=4, top_k=2, key_top_k=1, sinks=4, per_head=True)
        yield Check(backend, groups=16, top_k=3, window=1, kind="unbalanced")
        yield Check(backend, groups=4, kind="empty", padding="left", sinks=2)
        yield Check(backend, groups=4, top_k=2, key_top_k=2, padding="right", kind="ragged")
        yield Check(backend, sinks=4, extra=4)
        yield Check(backend, groups=4, top_k=2, padding="left", per_head=True, extra=2)
        yield Check(backend, tokens=63, window=64, kind="one")
        yield Check(backend, tokens=1)
    yield Check("stripes", dtype="float32", top_k=2, sinks=4)
    if flash.installed():
        yield Check("flash-attn", top_k=2, sinks=4)
    yield Check("auto", tokens=4099, top_k=1, sinks=4)
    yield Check("auto", tokens=4099, groups=4, top_k=2)


def draw(check: Check, device: torch.device) -> tuple[list[Tensor], dict[str, Any]]:
    """Tensors in the check's dtype, and the keyword arguments of the call."""
    generator = torch.Generator().manual_seed(0)
    batch = 2 if check.padding else 1
    tensors = draw_tensors(batch, check.heads, check.key_heads, check.tokens, check.dim,
                           getattr(torch, check.dtype), generator)  # fmt: skip
    sizes = (batch, *((check.key_heads,) if check.per_head else ()), check.tokens, check.groups)

    def membership(top_k: int) -> Tensor:
        return draw_membership(sizes, top_k, generator, check.kind).to(device)

    real = None
    if check.padding:
        real = torch.ones(batch, check.tokens, dtype=torch.bool, device=device)
        third = check.tokens // 3
        cut = slice(0, third) if check.padding == "left" else slice(check.tokens - third, None)
        real[1, cut] = False
    options = {
        "membership": membership(check.top_k), "window": check.window, "sinks": check.sinks,
        "key_membership": None if check.key_top_k is None else membership(check.key_top_k),
        "key_padding_mask": real,
    }  # fmt: skip
    if check.extra:
        shape = (batch, check.tokens, check.extra)
        drawn = torch.rand(shape, generator=generator) * (torch.arange(check.tokens)[:, None] + 1)
        options["extra_keys"] = drawn.long().to(device)
    return [x.to(device) for x in tensors], options


def with_gradients(attention: Callable[..., Tensor], tensors: list[Tensor], dtype: torch.dtype,
                   **options: Any) -> list[Tensor]:  # fmt: skip
    """Output and gradients in query, key and value, for one fixed gradient of the output."""
    leaves = [x.to(dtype, copy=True).requires_grad_() for x in tensors]
    out = attention(*leaves, **options)
    grad = torch.randn(out.shape, generator=torch.Generator().manual_seed(1))
    out.backward(grad.to(tensors[0].dtype).to(dtype).to(out.device))
    return [out.detach(), *(x.grad for x in leaves if x.grad is not None)]


def run_check(check: Check, device: torch.device) -> dict[str, Any]:
    """Errors against the float64 definition, and the limits: twice full attention's in half
    precision."""
    row: dict[str, Any] = {**asdict(check), "passed": False}
    try:
        tensors, options = draw(check, device)
        dtype = tensors[0].dtype
        found = with_gradients(_attention_of(check.backend, device), tensors, dtype, **options)
        exact = with_gradients(dense_attention, tensors, torch.float64, **options)
        errors = [relative_error(a, b) for a, b in zip(found, exact, strict=False)]
        limits = [1e-5, 1e-4, 1e-4, 1e-4] if dtype == torch.float32 else _half_limits(tensors)
    except Exception as error:  # a kernel that refuses or fails is a result of this harness
        return {**row, "error": f"{type(error).__name__}: {error}"[:500]}
    row |= {"errors": errors, "limits": limits[: len(errors)]}
    row["passed"] = all(a <= b for a, b in zip(errors, limits, strict=False))
    return row


def _attention_of(backend: str, device: torch.device) -> Callable[..., Tensor]:
    """A public backend; its rehearsal on CPU for the one that is for CUDA alone."""
    if backend != "varlen" or device.type == "cuda":
        return partial(focus_attention, backend=backend)
    return lambda *tensors, **options: operator.attention(
        check_arguments(*tensors, **options), backend
    )


def _half_limits(tensors: list[Tensor]) -> list[float]:
    found = with_gradients(full, tensors, tensors[0].dtype)
    exact = with_gradients(full, tensors, torch.float64)
    # One token: both are exact, and one rounding of the result is allowed.
    least = torch.finfo(tensors[0].dtype).eps
    return [max(2 * relative_error(a, b), least) for a, b in zip(found, exact, strict=True)]


def fastest_full(shape: Shape, seed: int) -> tuple[str, Callable[..., Tensor]]:
    """The full attention kernel of this machine that is fastest at a length, and its name."""
    tensors = [x.to(shape.device) for x in draw_tensors(
        1, shape.heads, shape.key_heads, shape.tokens, shape.head_dim, shape.dtype,
        torch.Generator().manual_seed(seed))]  # fmt: skip
    best: tuple[float, str, Callable[..., Tensor]] | None = None
    for kernel in KERNELS if shape.device.type == "cuda" else (SDPBackend.FLASH_ATTENTION,):

        def run(q: Tensor, k: Tensor, v: Tensor, kernel: SDPBackend = kernel) -> Tensor:
            with sdpa_kernel(kernel):
                return full(q, k, v)

        try:
            timing.once(run, tensors, False, shape.device)
            took = timing.once(run, tensors, False, shape.device)
        except RuntimeError:  # not for this shape, dtype or machine
            continue
        if best is None or took < best[0]:
            best = took, kernel.name.lower(), run
    if best is None:
        raise RuntimeError(f"no full attention kernel takes {shape}")
    return best[1], best[2]


def guess_seconds(rows: list[dict[str, Any]], shape: Shape, backward: bool) -> float:
    """Seconds of one length from the next shorter one's: four times the length, sixteen times the
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


def time_shape(shape: Shape, backward: bool, seconds: float, seed: int) -> list[dict[str, Any]]:
    """Rows of one length: the fastest full attention and ours for every K."""
    kernel, run = fastest_full(shape, seed)
    routings = [timing.route(shape, groups, 1, "symmetric", seed) for groups in GROUPS]
    timed = [Timed("full", None, run, []), *timing.methods(shape, routings, ["ours"])]
    timing.time_methods(shape, timed, backward, seconds, 10, seed)
    return [{**row, "kernel": kernel} for row in timing.rows(shape, timed, backward)]


def parts(shape: Shape, seed: int) -> dict[str, Any]:
    """Seconds of the whole call and of its two kernel calls, of K = 8: what else there is."""
    routed = timing.route(shape, 8, 1, "symmetric", seed)
    tensors = [x.to(shape.device) for x in draw_tensors(
        1, shape.heads, shape.key_heads, shape.tokens, shape.head_dim, shape.dtype,
        torch.Generator().manual_seed(seed))]  # fmt: skip
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
        return varlen.forward(validate(q, k, v, routed.membership, shape.window, 0, None, None,
                                       routed.key_membership))[0]  # fmt: skip

    flash.forward = watched
    try:
        wholes = [timing.once(run, tensors, False, shape.device) for _ in range(4)][1:]
    finally:
        flash.forward = kernel
    calls = median(a + b for a, b in zip(inside[2::2], inside[3::2], strict=True))
    whole = median(wholes)
    return {"length": shape.tokens, "heads": shape.heads, "head_dim": shape.head_dim, "K": 8,
            "seconds": whole, "calls": calls, "other_share": 1 - calls / whole}  # fmt: skip


def environment(device: torch.device) -> dict[str, Any]:
    """Hardware, driver, versions and clocks of this run."""
    found: dict[str, Any] = {
        "finished": None, "started": datetime.now(UTC).isoformat(timespec="seconds"),
        "versions": {"python": platform.python_version(), "torch": torch.__version__,
                     "cuda": torch.version.cuda, "transformers": transformers.__version__},
        "hardware": {"device": platform.processor() or "cpu"}, "driver": None, "clocks": None,
    }  # fmt: skip
    if device.type == "cuda":
        found["hardware"] = {
            "device": torch.cuda.get_device_name(device),
            "capability": list(torch.cuda.get_device_capability(device)),
            "memory_gb": round(torch.cuda.get_device_properties(device).total_memory / 2**30, 1),
        }
        found |= read_smi(_smi())
    return found


def _smi() -> str:
    try:
        done = subprocess.run(["nvidia-smi", f"--query-gpu={SMI}", "--format=csv,noheader"],
                              capture_output=True, text=True, check=True, timeout=30)  # fmt: skip
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout


def read_smi(text: str) -> dict[str, Any]:
    """Driver and clocks from nvidia-smi's line of the first GPU; None where it said nothing."""
    lines = text.strip().splitlines()
    names = SMI.split(",")
    values = [part.strip() for part in lines[0].split(",")] if lines else []
    if len(values) != len(names):
        return {"driver": None, "clocks": None}
    both = dict(zip(names, values, strict=True))
    return {"driver": both.pop("driver_version"), "clocks": both}


def write(path: Path, report: dict[str, Any]) -> None:
    """Writes the report whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.{os.getpid()}")
    part.write_text(json.dumps(report, indent=1, allow_nan=False) + "\n", encoding="utf-8")
    part.replace(path)


def main(arguments: list[str] | None = None) -> int:
    """Command line of the harness."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--device", default="cuda", choices=["cuda", "cpu"])
    parser.add_argument("--seconds", type=float, default=480.0)
    parser.add_argument("--out", type=Path, default=Path("results/gpu"))
    parser.add_argument("--longest", type=int, default=max(LENGTHS))
    chosen = parser.parse_args(arguments)
    if chosen.device == "cuda" and not torch.cuda.is_available():
        print("no CUDA device here; --device cpu rehearses the harness", file=sys.stderr)
        return 2
    device, budget = torch.device(chosen.device), Budget(chosen.seconds)
    report = {**environment(device), "rehearsal": device.type == "cpu", "checks": [], "steps": [],
              "speed": [], "parts": [], "left_out": []}  # fmt: skip
    stamp = datetime.now(UTC).strftime("%Y%m%d-%H%M%S")
    name = report["hardware"]["device"].replace(" ", "-").replace("/", "-").lower()
    path = chosen.out / f"{name}-{stamp}.json"
    with rehearsed() if device.type == "cpu" else nullcontext():
        check_all(report, path, device, budget)
        run_steps(report, path, device, budget)
        time_all(report, path, device, budget, chosen.longest)
    report["finished"] = datetime.now(UTC).isoformat(timespec="seconds")
    write(path, report)
    failed = [row for row in report["checks"] if not row["passed"]]
    passed = len(report["checks"]) - len(failed)
    print(f"{path}: {passed} checks passed, {len(failed)} failed, {len(report['speed'])} timings")
    print(f"left out: {report['left_out'] or 'nothing'}")
    return 1 if failed else 0


def check_all(report: dict[str, Any], path: Path, device: torch.device, budget: Budget) -> None:
    """Every check; at most a third of the time, so that timings are not starved."""
    until = budget.left * 2 / 3
    for check in checks():
        if budget.left < until:
            report["left_out"].append(f"check {check}")
            continue
        row = run_check(check, device)
        print("pass" if row["passed"] else "FAIL", row, flush=True)
        report["checks"].append(row)
        write(path, report)


def run_steps(report: dict[str, Any], path: Path, device: torch.device, budget: Budget) -> None:
    """A training step's gates and a decoding step: checked, then timed."""
    half = torch.bfloat16 if device.type == "cuda" else torch.float32
    found = [partial(steps.check_training, gate, dtype, device)
             for gate in GATES for dtype in (torch.float32, half)]  # fmt: skip
    found += [partial(steps.check_decode, 2049, dtype, device) for dtype in (torch.float32, half)]
    if device.type == "cuda":
        found += [partial(steps.time_training, n, half, device) for n in (4096, 16384)]
        found += [partial(steps.time_decode, n, half, device) for n in (2048, 32768, 131072)]
    for step in found:
        if not budget.allows(20.0):
            report["left_out"].append(f"{step.func.__name__} {step.args}")
            continue
        try:
            row = step()
        except Exception as error:  # a step that fails is a result of this harness
            row = {"step": step.func.__name__, "passed": False, "error": str(error)[:500]}
        print(row, flush=True)
        report["checks" if "passed" in row else "steps"].append(row)
        write(path, report)


def time_all(report: dict[str, Any], path: Path, device: torch.device, budget: Budget,
             longest: int) -> None:  # fmt: skip
    """Every length that fits into what is left of the budget, the shortest of all shapes first."""
    for tokens in (length for length in LENGTHS if length <= longest):
        for heads, key_heads, dim in SHAPES:
            dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
            shape = Shape(tokens, heads, key_heads, dim, 128, dtype, device)
            for backward in (False, True) if tokens <= BOTH_UNTIL else (False,):
                guess = guess_seconds(report["speed"], shape, backward)
                if not budget.allows(guess):
                    report["left_out"].append(f"{heads} heads, {tokens} tokens, both={backward}")
                    continue
                try:
                    report["speed"] += time_shape(shape, backward, 4.0, 0)
                except RuntimeError as error:  # out of memory, or a kernel that refuses
                    report["left_out"].append(f"{heads} heads, {tokens} tokens: {error}"[:300])
                write(path, report)
            if tokens == BOTH_UNTIL and device.type == "cuda" and budget.allows(10.0):
                report["parts"].append(parts(shape, 0))
                write(path, report)


if __name__ == "__main__":
    sys.exit(main())
