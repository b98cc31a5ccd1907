"""Small result files, written as the pipeline writes them, for the rules, tables and figures."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

TOKENS = 1000
LOSS = 3.0  # nats per token of the pretrained model
FULL = {"name": "full"}
NOTHING = {"name": "none"}
LORA = {"name": "lora", "steps": 24}
ROUTERS = {"name": "centroids", "steps": 24}
RECIPE = {"name": "focus", "num_groups": 18, "sinks": 4, "gate": "log", "routers": "query_head"}
PAPER = {"name": "focus", "num_groups": 4, "sinks": 0, "gate": "eq2", "routers": "paper"}
PAPER_MASK = {"K": 4, "probe": "symmetric", "ngram": 0, "balance": "sinkhorn"}


def losses(
    condition: str,
    budget: object = "own",
    change: float = 0.0,
    *,
    wobble: float = 1e-4,
    seeds: Sequence[int] = (0,),
    apart: float = 0.0,
    documents: int = 6,
    **columns: Any,
) -> list[dict[str, Any]]:
    """Rows of one condition whose perplexity is ``change`` (relative) above the pretrained
    model's.

    Args:
        wobble: how far documents lie apart in that, in nats; ``apart``: seeds.
    """
    base = {
        "condition": condition, "budget": budget, "K": 18, "top_k": 2, "probe": "multi_probe",
        "ngram": 3, "window": 128, "balance": "causal", "density": 0.2, "distant_density": 0.12,
        "sinks": 4, "tokens": TOKENS,
    }  # fmt: skip
    if condition in ("full", "soft"):
        base |= {"density": 1.0, "distant_density": 1.0}
    rows = []
    for n in range(documents):
        for number, seed in enumerate(seeds):
            off = wobble * (n % 2 - 0.5) + apart * (number - (len(seeds) - 1) / 2)
            loss = LOSS + 0.1 * n + np.log1p(change) + off
            row = {"seed": seed, "document": f"book {n}", "sha": f"{n:012x}", "nll": TOKENS * loss}
            rows.append(base | row | columns)
    return rows


def record(folder: Path, **settings: Any) -> None:
    """A run.json of a finished run."""
    folder.mkdir(parents=True, exist_ok=True)
    seeds = settings.pop("seeds", [0])
    told = {"command": "python -m x", "seeds": seeds, "settings": settings,
            "finished": "2026-01-02T03:04:05+00:00", "commit": {"id": "0" * 40, "dirty": False},
            "hardware": {"cpu": "a CPU", "cores": 2}}  # fmt: skip
    (folder / "run.json").write_text(json.dumps(told))


def write_read(
    root: Path,
    block: str,
    rows: list[dict[str, Any]],
    *,
    reading: str = "final",
    texts: str = "unseen",
    cell: str | None = None,
    method: dict[str, Any] = FULL,
    regime: dict[str, Any] = NOTHING,
    against: Sequence[str] = (),
    model: str = "smollm2-135m-instruct",
    context: int = 2048,
    start: str | None = None,
    **reads: Any,
) -> Path:
    """A finished reading of one cell; cells of one block are added to each other."""
    folder, cell = root / block / "read" / reading, cell or block
    known = {"name": cell, "block": block, "model": model, "method": method, "regime": regime,
             "against": list(against), "texts": texts, "start": start}  # fmt: skip
    path, cells = folder / "rows.csv", {cell: known}
    frame = pd.DataFrame([{"experiment": block, "cell": cell, "texts": texts} | r for r in rows])
    if path.is_file():
        frame = pd.concat([pd.read_csv(path, dtype={"sha": str}), frame], ignore_index=True)
        cells = json.loads((folder / "run.json").read_text())["settings"]["cells"] | cells
    told = {"kind": "perplexity", "texts": [texts], "context": context, "final": True} | reads
    seeds = sorted({int(seed) for seed in frame["seed"]})
    record(folder, cells=cells, reading=told, seeds=seeds)
    frame.to_csv(path, index=False)
    return path


def write_pretrained(root: Path, block: str = "pretrained", **how: Any) -> None:
    """The pretrained model, read on six documents."""
    write_read(root, block, losses("full"), **how)


def write_adapted(root: Path, change: float = -0.1, block: str = "adapted", **how: Any) -> None:
    """The adapted model under full attention."""
    regime = how.pop("regime", LORA)
    write_read(root, block, losses("full", change=change), regime=regime,
               against=["pretrained"], **how)  # fmt: skip


def write_masks(
    root: Path, block: str, changes: dict[object, float], *, method: Any = RECIPE,
    regime: Any = NOTHING, against: Sequence[str] = ("adapted", "pretrained"),
    rows: dict[str, Any] | None = None, **how: Any,
) -> None:  # fmt: skip
    """An experiment under masks: changes against the pretrained model by budget."""
    every = [row for budget, change in changes.items()
             for row in losses("hard", budget, change,
                               **({"distant_density": budget} if isinstance(budget, float) else {})
                               | (rows or {}))]  # fmt: skip
    write_read(root, block, every, method=method, regime=regime, against=against, **how)


def write_paper(
    root: Path, changes: dict[int, float], *, block: str = "paper", method: Any = None,
    regime: Any = ROUTERS, rows: dict[str, Any] | None = None, **how: Any,
) -> None:  # fmt: skip
    """The paper's setup with k groups of four: changes against the pretrained model by k."""
    every = [
        row for k, change in changes.items()
        for row in losses("hard", f"k{k}.symmetric.sinkhorn", change,
                          **PAPER_MASK | {"top_k": k} | (rows or {}))
    ]  # fmt: skip
    write_read(root, block, every, method=method or PAPER, regime=regime, against=["pretrained"],
               **how)  # fmt: skip


def write_copying(
    root: Path, block: str, again: float, *, budget: object = "own", wobble: float = 0.001,
    **how: Any,
) -> None:  # fmt: skip
    """A passage read again at a loss of ``again`` nats under a mask, at 0.5 under full attention,
    and at 3 when new."""
    nats = {"hard": again, "full": 0.5, "new": 3.0}
    rows = [
        row | {"nll": TOKENS * (loss + wobble * (n % 2))}
        for name, loss in nats.items()
        for n, row in enumerate(losses(name, budget if name == "hard" else "own", distance=512))
    ]
    write_read(root, block, rows, reading="copying", kind="copying", **how)


def write_leak(
    root: Path, sinkhorn: float, causal: float, block: str = "paper", method: Any = None
) -> None:
    """Shares of earlier assignments that a suffix changes, by balance."""
    rows = [
        {"seed": 0, "balance": balance, "document": f"book {n}", "max_logit_change": 1.0,
         "changed": share * (0.9 + 0.05 * n), "largest_group": 0.3, "one_plus_cv2": 1.1}
        for balance, share in (("sinkhorn", sinkhorn), ("causal", causal)) for n in range(4)
    ]  # fmt: skip
    write_read(root, block, rows, reading="leak", kind="leak", method=method or PAPER,
               regime=ROUTERS)  # fmt: skip


def write_training(root: Path, block: str, losses_by_step: Sequence[float]) -> None:
    """The course of one training."""
    folder = root / block / "train" / "seed0" / block
    record(folder, model="smollm2-135m-instruct", method=RECIPE, regime=ROUTERS, seed=0)
    steps = range(1, len(losses_by_step) + 1)
    frame = pd.DataFrame({"seed": 0, "step": steps, "loss": losses_by_step})
    frame.to_csv(folder / "train.csv", index=False)


def write_table(root: Path, stage: str, *rows: dict[str, Any]) -> None:
    """The table of a measurement without training; every row is BASES' unless it says otherwise."""
    record(root / stage)
    frame = pd.DataFrame([BASES[stage] | values for values in rows])
    frame.to_csv(root / stage / "table.csv", index=False)


WHOLE = {
    "experiment": "untrained", "device": "cpu", "length": 8192, "dtype": "float32",
    "full_s": 2.0, "ours_s": 1.0,
    "speedup": 2.0, "speedup_low": 1.9, "speedup_high": 2.1, "repetitions": 5,
}  # fmt: skip
BASES: dict[str, dict[str, Any]] = {
    "speed": {
        "device": "cpu", "length": 16384, "K": 8, "k": 1, "probe": "symmetric", "window": 128,
        "heads": 9, "key_heads": 3, "head_dim": 64, "dtype": "float32", "method": "ours",
        "direction": "forward", "median_s": 1.0, "low_s": 0.99, "high_s": 1.01, "speedup": 5.0,
        "density": 0.14, "bound": 7.1, "tflops": 0.1, "repetitions": 5,
    },
    "exactness": {
        "K": 4, "k": 1, "window": 64, "sinks": 0, "length": 111, "dtype": "float32",
        "groups": "balanced", "method": "log_sum_exp", "output_cosine": 1.0, "output_error": 1e-6,
        "gradient_error": 1e-6, "passed": True,
    },
    "decode": {
        "device": "cpu", "context": 2048, "dtype": "float32", "K": 8, "k": 1, "probe": "symmetric",
        "routers": "layer", "extra_keys": 0, "method": "ours", "median_s": 1.0, "low_s": 0.9,
        "high_s": 1.2, "speedup": 2.0, "bound": 4.0, "error": 1e-7, "repetitions": 9,
    },
    "masks": {
        "device": "cpu", "length": 16384, "method": "groups", "K": 18, "k": 2, "heavy": 0.0,
        "budget": None, "density": 0.13, "time": 0.2, "time_low": 0.18, "time_high": 0.22,
        "repetitions": 5,
    },
    "prefill": WHOLE | {"outside_s": 0.5, "density": 0.2, "bound": 2.5, "share_of_bound": 0.8},
    "continuation": WHOLE | {"new_tokens": 48},
}  # fmt: skip


def gpu_report(base: Path, device: str, *rows: dict[str, Any]) -> None:
    """A report of a GPU: the paper's decomposition unless a row says otherwise."""
    (base / "gpu").mkdir(parents=True, exist_ok=True)
    shape = {"device": "cuda", "heads": 32, "key_heads": 8, "head_dim": 128, "method": "paper_k1"}
    report = {"hardware": {"device": device},
              "speed": [BASES["speed"] | shape | row for row in rows]}  # fmt: skip
    (base / "gpu" / "report.json").write_text(json.dumps(report))


def gpu_steps(base: Path, device: str, step: str, *rows: dict[str, Any],
              full: Sequence[dict[str, Any]] = ()) -> None:  # fmt: skip
    """A report of a GPU with timings of one kind; ``full``: and these of attention."""
    gpu_report(base, device, *full)
    report = json.loads((base / "gpu" / "report.json").read_text())
    kind = "parts" if step == "parts" else "steps"
    report[kind] = [{"step": step, "repetitions": 3, **row} for row in rows]
    (base / "gpu" / "report.json").write_text(json.dumps(report))


def write_lengths(root: Path, change: float, *, contexts: Sequence[int] = (1024, 8192),
                  steps: int = 24, name: str = "paper", kept: float = 0.12) -> None:  # fmt: skip
    """Two of four groups at several lengths against full attention, and what they start from."""
    record(root / name / "train" / "seed0" / name, model="smollm2-135m-instruct",
           method=PAPER, regime={**ROUTERS, "steps": steps, "context": 1024})  # fmt: skip
    for context in contexts:
        how = {"reading": f"long_{context}", "texts": "plays", "context": context}
        if not (root / "long_pretrained" / "read" / how["reading"]).exists():
            write_read(root, "long_pretrained", losses("full"), **how)
        rows = losses("hard", "k2", change, **PAPER_MASK | {"top_k": 2, "distant_density": kept})
        write_read(root, f"long_{name}", rows, method=PAPER, against=["long_pretrained"],
                   start=name, **how)  # fmt: skip


def write_positions(root: Path, cost: float) -> None:
    """Two stretches of four documents; a mask costs nothing in the first, ``cost`` nats per token
    in the second, where a tenth of the keys lie in other groups."""
    for block, condition in (("long_pretrained", "full"), ("long_paper", "hard")):
        hard = condition == "hard"
        rows = [
            {"seed": 0, "condition": condition, "budget": "k2" if hard else "own", "texts": "plays",
             "document": str(n), "sha": str(n), "position": start, "tokens": 10,
             "nll": 10 * (3 + 0.1 * n + cost * hard * bool(start)),
             **({"largest": 30.0, "moved": 10.0 * bool(start)} if hard else {})}
            for n in range(4) for start in (0, 1024)
        ]  # fmt: skip
        known = {"method": PAPER, "against": ["long_pretrained"], "start": "paper"} if hard else {}
        write_read(root, block, rows, reading="positions", kind="positions", **known)


def write_plan(base: Path) -> None:
    """What two models would need, as `python -m experiments.stages.cost --all` writes it."""
    parts = {"train_weights": 2**34, "train_gathered": 2**33, "train_gradients": 2**30,
             "train_optimiser": 2**31, "train_activations": 2**32, "infer_weights": 2**35,
             "infer_cache": 2**31, "infer_activations": 2**30}  # fmt: skip
    rows = [{"model": name, "scale": "cluster", "parameters": count, **parts}
            for name, count in (("small", 10**9), ("large", 10**10))]  # fmt: skip
    (base / "tables").mkdir(parents=True, exist_ok=True)
    pd.DataFrame(rows).to_csv(base / "tables" / "plan.csv", index=False)
