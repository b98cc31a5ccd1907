"""Checks every CUDA path against the definition, then times attention up to a million tokens.

`--device cpu` rehearses the whole, with Triton's interpreter.

    python -m tests.gpu.run [--seconds 480] [--out results/gpu] [--only checks speed]

Needs torch, Triton and transformers only. Writes one JSON file with hardware, driver, versions,
clocks, checks and timings, anew after every step, so a run that is cut short leaves what it
measured. Exit status 1 if a check failed.

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
import traceback
from collections.abc import Callable
from contextlib import nullcontext
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

if "--device" in sys.argv and "cpu" in sys.argv:
    os.environ["TRITON_INTERPRET"] = "1"  # read when Triton is first imported

import torch
import transformers

from experiments import imports
from tests.attention.rehearsal import rehearsed
from tests.gpu import checks, library, speed, steps

PARTS = ("checks", "steps", "library", "speed", "compiled")
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


def environment(device: torch.device) -> dict[str, Any]:
    """Hardware, driver, versions and clocks of this run."""
    found: dict[str, Any] = {
        "finished": None, "started": datetime.now(UTC).isoformat(timespec="seconds"),
        "versions": {"python": platform.python_version(), "torch": torch.__version__,
                     "cuda": torch.version.cuda, "transformers": transformers.__version__},
        "code": imports.attention(),
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
    parser.add_argument("--longest", type=int, default=max(speed.LENGTHS))
    parser.add_argument("--only", nargs="*", choices=PARTS, default=PARTS)
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
        if "checks" in chosen.only:
            check_all(report, path, device, budget)
        if "steps" in chosen.only:
            run_all(steps.every(device), report, path, budget)
        if "library" in chosen.only:
            run_all(library.every(device), report, path, budget)
        if "speed" in chosen.only:
            time_all(report, path, device, budget, chosen.longest)
        if "compiled" in chosen.only and device.type == "cuda":
            run_all([partial(library.check_compiled, device)], report, path, budget)
    report["finished"] = datetime.now(UTC).isoformat(timespec="seconds")
    write(path, report)
    failed = [row for row in report["checks"] if not row["passed"]]
    passed = len(report["checks"]) - len(failed)
    print(f"{path}: {passed} checks passed, {len(failed)} failed, {len(report['speed'])} timings")
    print(f"left out: {report['left_out'] or 'nothing'}")
    return 1 if failed else 0


def check_all(report: dict[str, Any], path: Path, device: torch.device, budget: Budget) -> None:
    """Every check of attention; at most a third of the time, so that timings are not starved."""
    until = budget.left * 2 / 3
    for check in checks.checks():
        if budget.left < until:
            report["left_out"].append(f"check {check}")
            continue
        row = checks.run_check(check, device)
        print("pass" if row["passed"] else "FAIL", row, flush=True)
        report["checks"].append(row)
        write(path, report)


def run_all(found: list[partial[dict[str, Any]]], report: dict[str, Any], path: Path,
            budget: Budget) -> None:  # fmt: skip
    """Checks and timings, each a row, that need some seconds."""
    for step in found:
        if not budget.allows(20.0):
            report["left_out"].append(f"{step.func.__name__} {step.args}")
            continue
        started = time.perf_counter()
        try:
            row = step()
        except Exception as error:  # a step that fails is a result of this harness
            told = "".join(traceback.format_exception(error)[-3:])
            row = {"step": step.func.__name__, "passed": False, "error": told[-1500:]}
        row["took_s"] = round(time.perf_counter() - started, 1)
        print(row, flush=True)
        report["checks" if "passed" in row else "steps"].append(row)
        write(path, report)


def time_all(report: dict[str, Any], path: Path, device: torch.device, budget: Budget,
             longest: int) -> None:  # fmt: skip
    """Every length that fits into what is left of the budget, the shortest of all shapes first."""
    for shape in speed.shapes(device, longest):
        for backward in (False, True) if shape.tokens <= speed.BOTH_UNTIL else (False,):
            what = f"{shape.heads} heads, {shape.tokens} tokens, both={backward}"
            if not budget.allows(speed.guess_seconds(report["speed"], shape, backward)):
                report["left_out"].append(what)
                continue
            try:
                report["speed"] += speed.time_shape(shape, backward, 2.0, 0)
            except RuntimeError as error:  # out of memory, or a kernel that refuses
                report["left_out"].append(f"{what}: {error}"[:300])
            write(path, report)
        if shape.tokens >= 65536 and device.type == "cuda" and budget.allows(10.0):
            report["parts"].append(speed.parts(shape, 0))
            write(path, report)


if __name__ == "__main__":
    sys.exit(main())
