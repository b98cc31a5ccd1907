"""Two processes that share a pretrained model read a part of its files each, and train what one
does that reads it whole."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import safetensors
import torch

import focus
from experiments import training
from experiments.regimes.base import Regime
from experiments.sources import models
from tests.experiments.regimes.processes import train_in_two
from tests.experiments.regimes.test_sharded import of, same_weights
from tests.experiments.training import CENTROIDS, LORA, ROUTED

FOLDER = Path("data/sources")
SHARED = {"devices": 2, "strategy": "fsdp2", "checkpoint_every": 20}
HEAVY = {**ROUTED, "probe": "multi_probe", "heavy_hitters": 0.1}
ROUTERS = {**CENTROIDS, "steps": 2}
ADDED = {**LORA, "batch_size": 2, "steps": 2}
FULL = {"name": "full", "steps": 2, "context": 64, "batch_size": 2, "warmup_steps": 1,
        "learning_rate": 0.01}  # fmt: skip
CELLS: dict[str, dict[str, Any]] = {
    "routers": {"base": "routed", "model": "gpt2", "method": HEAVY, "regime": ROUTERS},
    "added": {"base": "plain", "model": "small-llama", "regime": ADDED},
    "merged": {"base": "routed", "model": "small-llama", "start": "added", "regime": ROUTERS},
    "weights": {"base": "plain", "model": "small-llama", "dtype": "bfloat16", "regime": FULL},
}


def publish(name: str, shape: str, **how: Any) -> dict[str, torch.Tensor]:
    """A tiny model's weights, in a folder of this name as if they had been fetched."""
    model, tokenizer = models.load(shape)
    model.save_pretrained(FOLDER / name, **how)
    tokenizer.save_pretrained(FOLDER / name)
    return dict(model.named_parameters())


def strip(path: Path, prefix: str) -> None:
    """Leaves a prefix out of the names of a file, as GPT-2's has it."""
    tensors = safetensors.torch.load_file(path)
    short = {name.removeprefix(prefix): tensor for name, tensor in tensors.items()}
    safetensors.torch.save_file(short, path, {"format": "pt"})


class Slices:
    """A file of tensors that counts what is read of it."""

    def __init__(self, opened: Any, seen: dict[str, int]) -> None:
        self.opened, self.seen = opened, seen

    def __enter__(self) -> Slices:
        self.opened.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self.opened.__exit__(*error)

    def __getattr__(self, name: str) -> Any:
        assert name in ("keys", "metadata")  # and no whole tensor
        return getattr(self.opened, name)

    def get_slice(self, key: str) -> Any:
        counted, part = self, self.opened.get_slice(key)

        class Slice:
            get_shape, get_dtype = part.get_shape, part.get_dtype

            def __getitem__(self, where: Sequence[slice]) -> torch.Tensor:
                found: torch.Tensor = part[where]
                counted.seen[key] = counted.seen.get(key, 0) + found.numel()
                return found

        return Slice()


def watched(rank: int) -> None:
    """No model is loaded whole; what is read and then held is written down."""
    seen: dict[str, int] = {}
    opened, ready = safetensors.safe_open, Regime.configure_model

    def refused(*args: Any, **kwargs: Any) -> Any:
        raise AssertionError("a whole model was loaded")

    def configured(regime: Regime) -> None:
        there = regime.model is not None
        ready(regime)
        if not there:
            held = {name: (p.to_local().untyped_storage().nbytes(), p.numel() * p.element_size())
                    for name, p in regime.model.named_parameters()}  # fmt: skip
            path = Path(f"{regime.cell.name}.{rank}.json")
            path.write_text(json.dumps({"read": dict(seen), "held": held}))
            seen.clear()

    focus.observed.SETTLED = 8  # documents here are short
    models.AutoModelForCausalLM.from_pretrained = refused  # type: ignore[method-assign]
    safetensors.safe_open = lambda *args, **kwargs: Slices(opened(*args, **kwargs), seen)
    Regime.configure_model = configured  # type: ignore[method-assign]


@pytest.mark.slow
def test_each_process_reads_its_part(work: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    shared = {f"two_{name}": {**cell, "seeds": [0], "regime": {**cell["regime"], **SHARED}}
              for name, cell in CELLS.items()}  # fmt: skip
    chosen = work(**CELLS, **shared)
    many = publish("small-llama", "tiny-llama", max_shard_size="100KB")
    whole = {"gpt2": publish("gpt2", "tiny-gpt2"), "small-llama": many}
    strip(FOLDER / "gpt2/model.safetensors", "transformer.")
    assert len(list((FOLDER / "small-llama").glob("*.safetensors"))) > 2
    monkeypatch.setattr(focus.observed, "SETTLED", 8)
    training.train("added", 0, chosen)  # others start from it
    train_in_two(list(shared), begin=watched)
    for name, cell in CELLS.items():
        training.train(name, 0, chosen)
        same_weights(chosen, f"two_{name}", name)
        losses = [pd.read_csv(of(chosen, each) / "train.csv") for each in (f"two_{name}", name)]
        pd.testing.assert_frame_equal(*losses, rtol=1e-4, atol=1e-5)
        halves(f"two_{name}", whole[cell["model"]])
    for name in ("routers", "merged"):
        own, other = (json.loads((of(chosen, each) / "adapter/adapter_config.json").read_text())
                      for each in (f"two_{name}", name))  # fmt: skip
        assert own == other
        assert own["base"]["fingerprint"]["bfloat16"]


def halves(cell: str, whole: dict[str, torch.Tensor]) -> None:
    """Each process has read half of every weight, and holds half of all, but for a last row."""
    notes = [json.loads(Path(f"{cell}.{rank}.json").read_text()) for rank in range(2)]
    for name, tensor in whole.items():
        parts = [sum(count for key, count in note["read"].items() if name.endswith(key))
                 for note in notes]  # fmt: skip
        assert sum(parts) == tensor.numel(), name
        row = tensor[0].numel()
        assert max(parts) <= (tensor.numel() + row) / 2, name
    for note in notes:
        own = [each for name, each in note["held"].items() if "focus_router" not in name]
        held, total = map(sum, zip(*own, strict=True))  # routers are small, and sharded unevenly
        assert held == pytest.approx(total / 2, rel=0.02)
