"""Small result files, written as the stages write them, for the rules, tables and figures."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pandas as pd

from analysis.results import CONTROLS_COLUMNS, EXACTNESS_COLUMNS, SPEED_COLUMNS, TOPK_COLUMNS

RUN = {
    "command": "python -m experiments.stages.topk --cell k4_sinks0",
    "settings": {
        "scale": "laptop",
        "seed": 0,
        "model": {"name": "smollm2-135m-instruct"},
        "corpus": {"source": "shakespeare"},
        "protocol": {"context": 1024},
        "retrofit": {"steps": 60},
    },
}


def row(**values: Any) -> dict[str, Any]:
    """One row of a top-k table: hard top-2 of K = 4 in the paper's way unless said otherwise."""
    base = {
        "variant": "k4_sinks0",
        "K": 4,
        "sinks": 0,
        "gate": "log",
        "routers": "paper",
        "mode": "hard",
        "balance": "sinkhorn",
        "probe": "symmetric",
        "top_k": 2,
        "seed": 0,
        "ppl": 40.0,
        "ppl_low": 36.0,
        "ppl_high": 44.0,
        "delta": 0.05,
        "delta_low": 0.03,
        "delta_high": 0.07,
        "density": 0.86,
        "distant_density": 0.8,
        "n_documents": 8,
        "tokens": 16368,
        "max_logit_difference": 3.0,
    }
    return base | values


def pretrained(**values: Any) -> dict[str, Any]:
    same = {
        "mode": "pretrained",
        "balance": "none",
        "probe": "none",
        "top_k": 0,
        "density": 1.0,
        "ppl": 38.0,
    }
    still = {"delta": 0.0, "delta_low": 0.0, "delta_high": 0.0, "max_logit_difference": 0.0}
    return row(**same, **still) | values


def write_topk(
    root: Path, rows: list[dict[str, Any]], cell: str = "k4_sinks0", run: Any = None
) -> None:
    folder = root / "topk" / cell
    folder.mkdir(parents=True, exist_ok=True)
    pd.DataFrame(rows).reindex(columns=TOPK_COLUMNS).to_csv(folder / "table.csv", index=False)
    (folder / "run.json").write_text(json.dumps(RUN if run is None else run))


def write_speed(root: Path, *rows: dict[str, Any]) -> None:
    base = {
        "device": "cpu",
        "length": 16384,
        "K": 8,
        "k": 1,
        "probe": "symmetric",
        "window": 128,
        "heads": 9,
        "key_heads": 3,
        "head_dim": 64,
        "dtype": "float32",
        "method": "ours",
        "direction": "forward",
        "median_s": 1.0,
        "low_s": 0.95,
        "high_s": 1.05,
        "speedup": 5.0,
        "density": 0.14,
        "bound": 7.1,
        "share_of_bound": 0.7,
        "tflops": 0.1,
        "peak_mb": 10.0,
        "repetitions": 5,
    }
    (root / "speed").mkdir(exist_ok=True)
    frame = pd.DataFrame([base | values for values in rows]).reindex(columns=SPEED_COLUMNS)
    frame.to_csv(root / "speed" / "table.csv", index=False)


def write_exactness(root: Path, *rows: dict[str, Any]) -> None:
    base = {
        "K": 4,
        "k": 1,
        "window": 64,
        "sinks": 0,
        "length": 111,
        "dtype": "float32",
        "groups": "balanced",
        "method": "log_sum_exp",
        "output_cosine": 1.0,
        "output_error": 1e-6,
        "gradient_error": 1e-6,
        "passed": True,
    }
    (root / "exactness").mkdir(exist_ok=True)
    frame = pd.DataFrame([base | values for values in rows]).reindex(columns=EXACTNESS_COLUMNS)
    frame.to_csv(root / "exactness" / "table.csv", index=False)


def write_leak(
    root: Path, sinkhorn: float, causal: float, variant: str = "k4_sinks0", trial: str = ""
) -> None:
    """Metrics of the leak stage: of a variant, or of one mask of a trial's routers."""
    (root / "leak" / trial).mkdir(parents=True, exist_ok=True)
    values: dict[str, float] = {}
    for balance, share in (("sinkhorn", sinkhorn), ("causal", causal)):
        name = f"{variant}.{balance}.changed"
        values |= {name: share, f"{name}_low": 0.8 * share, f"{name}_high": 1.2 * share}
        values[f"{name}_n"] = 4
        middle = {"sinkhorn": 0.01, "causal": 0.02}[balance]
        cost = {"delta": middle, "delta_low": middle - 0.01, "delta_high": middle + 0.01}
        cost["density"] = 0.44 + middle
        values |= {f"{variant}.{balance}.{key}": value for key, value in cost.items()}
    (root / "leak" / trial / "metrics.json").write_text(json.dumps(values))


def write_controls(root: Path, *rows: tuple[str, float, float, float]) -> None:
    """Rows of (kind, versus_routed, low, high) beside a routed one; all at top-1."""
    base = {
        "variant": "recipe", "K": 8, "top_k": 1, "window": 128, "density": 0.3, "seed": 0,
        "distant_density": 0.13, "ppl": 40.0, "ppl_low": 36.0, "ppl_high": 44.0, "delta": 0.05,
        "delta_low": 0.03, "delta_high": 0.07, "n_documents": 8,
    }  # fmt: skip
    names = ("kind", "versus_routed", "versus_routed_low", "versus_routed_high")
    table = [base | dict(zip(names, row, strict=True)) for row in (("routed", 0, 0, 0), *rows)]
    folder = root / "controls"
    folder.mkdir(parents=True, exist_ok=True)
    pd.DataFrame(table).reindex(columns=CONTROLS_COLUMNS).to_csv(folder / "table.csv", index=False)
    (folder / "run.json").write_text(json.dumps(RUN))


def write_recipe(root: Path, trial: str, *rows: dict[str, object]) -> None:
    """A trial's table; every row is a routed mask of a finalist unless it says otherwise."""
    base: dict[str, object] = {
        "trial": trial, "final": True, "kind": "routed", "reading": "symmetric.k1", "K": 16,
        "top_k": 1, "probe": "symmetric", "window": 128, "density": 0.2, "distant_density": 0.06,
        "ppl": 34.0, "delta": 0.02, "delta_low": 0.01, "delta_high": 0.03, "delta_least": 0.015,
        "delta_most": 0.025, "seeds": 3, "context": 2048, "n_documents": 8,
    }  # fmt: skip
    _write_cell(root / "recipe" / trial, base, rows)


def write_losses(root: Path, trial: str, losses: dict[str, dict[str, float]]) -> None:
    """Loss a token of each document under each reading, as a trial's documents.csv has them."""
    rows = [
        {"trial": trial, "kind": "pretrained" if reading == "pretrained" else "routed",
         "reading": reading, "seed": 0, "document": name,
         "nll": 100 * loss, "tokens": 100}
        for reading, own in losses.items() for name, loss in own.items()
    ]  # fmt: skip
    pd.DataFrame(rows).to_csv(root / "recipe" / trial / "documents.csv", index=False)


def write_transfer(
    root: Path, corpus: str, *rows: dict[str, object], trial: str = "default"
) -> None:
    """A corpus's table for a trial, rows as of :func:`write_recipe`."""
    write_recipe(root, trial, *rows)
    (root / "transfer").mkdir(exist_ok=True)
    (root / "recipe" / trial).rename(root / "transfer" / f"{trial}-{corpus}")


def write_copying(root: Path, trial: str, *rows: dict[str, object]) -> None:
    """A trial's table; every row is a routed mask unless it says otherwise."""
    base: dict[str, object] = {
        "trial": trial, "kind": "routed", "reading": "symmetric.k1", "K": 16, "top_k": 1,
        "probe": "symmetric", "window": 128, "distant_density": 0.07, "nats": 2.9, "above": 2.5,
        "copied": 0.2, "copied_low": 0.15, "copied_high": 0.25, "copied_least": 0.18,
        "copied_most": 0.22, "seeds": 3, "context": 2048, "passage": 256, "n_documents": 6,
    }  # fmt: skip
    _write_cell(root / "copying" / trial, base, rows)


def write_decode(root: Path, *rows: dict[str, object]) -> None:
    """Decoding steps; every row is ours with K = 8 unless it says otherwise."""
    base: dict[str, object] = {
        "device": "cpu", "context": 2048, "dtype": "float32", "K": 8, "k": 1, "probe": "symmetric",
        "routers": "layer", "extra_keys": 0, "method": "ours", "median_s": 1.0, "low_s": 0.9,
        "high_s": 1.2, "bytes_read": 1000, "speedup": 2.0, "bound": 4.0, "error": 1e-7,
        "repetitions": 9,
    }  # fmt: skip
    _write_cell(root / "decode", base, rows)


def write_whole(root: Path, stage: str, *rows: dict[str, object]) -> None:
    """The whole model beside the pretrained one: ``prefill`` or ``continuation``."""
    base: dict[str, object] = {
        "device": "cpu", "length": 8192, "dtype": "float32", "full_s": 2.0, "ours_s": 1.0,
        "speedup": 2.0, "speedup_low": 1.9, "speedup_high": 2.1, "repetitions": 5,
    }  # fmt: skip
    own: dict[str, object] = {"new_tokens": 48}
    if stage == "prefill":
        own = {"outside_s": 0.5, "density": 0.2, "bound": 2.5, "share_of_bound": 0.8}
    _write_cell(root / stage, base | own, rows)


def write_generation(root: Path, *rows: dict[str, object], trial: str = "") -> None:
    """Questions of the generation stage, with what was generated."""
    base: dict[str, object] = {
        "variant": "recipe", "question": 0, "prompt_tokens": 900, "tokens": 96,
        "agreement_forced": 0.9, "agreement_free": 0.5, "cache_differs_full": 0,
        "cache_differs_hard": 0, "text_full": "4, so\n#### 4", "text_hard": "5",
    }  # fmt: skip
    _write_cell(root / "generation" / trial, base, rows)


def _write_cell(folder: Path, base: dict[str, object], rows: tuple[dict[str, object], ...]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    pd.DataFrame([base | row for row in rows]).to_csv(folder / "table.csv", index=False)
    (folder / "run.json").write_text(json.dumps(RUN))
