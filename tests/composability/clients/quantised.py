"""Weights in 4 bits, by bitsandbytes. In a process that alone sees the package: peft imports it
wherever it is installed, which takes seconds."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import focus
from tests.composability.clients.made import CONFIG, Found, ids, logits, lora, with_potentials
from tests.models import tiny

VERSION = "0.50.2"


def quantised(mode: str) -> Found:
    """Against the model that has the same weights unpacked; LoRA beside the routers (QLoRA)."""
    return _by_mode()[mode]


@cache
def _by_mode() -> dict[str, Found]:
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    with tempfile.TemporaryDirectory() as folder:
        command = [*pip, "--no-deps", "--target", folder, f"bitsandbytes=={VERSION}"]
        subprocess.run(command, check=True, capture_output=True)
        out = Path(folder) / "found.pt"
        done = subprocess.run(
            [sys.executable, "-m", "tests.composability.clients.quantised", str(out)],
            env={**os.environ, "PYTHONPATH": folder}, capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr[-2000:]
        found: dict[str, Found] = torch.load(out)
        return found


def _compared(mode: str) -> Found:
    packed = _in_four_bits()
    if mode == "full":
        with torch.no_grad():
            plain = packed(ids()).logits
        return logits(with_potentials(focus.attach(packed, CONFIG, seed=0)), mode), plain
    unpacked = _unpacked(packed)
    return _slopes_and_logits(packed, mode), _slopes_and_logits(unpacked, mode)


def _in_four_bits() -> Any:
    from transformers import AutoModelForCausalLM, BitsAndBytesConfig

    how = BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4")
    with tempfile.TemporaryDirectory() as folder:
        tiny("tiny-llama").save_pretrained(folder)
        return AutoModelForCausalLM.from_pretrained(folder, quantization_config=how).eval()


def _unpacked(packed: Any) -> Any:
    from bitsandbytes.functional import dequantize_4bit

    model, found = tiny("tiny-llama"), 0
    for name, module in packed.named_modules():
        weight = getattr(module, "weight", None)
        if hasattr(weight, "quant_state"):
            own = dequantize_4bit(weight.data, weight.quant_state)
            model.get_submodule(name).weight.data.copy_(own)
            found += 1
    assert found > 0
    return model


def _slopes_and_logits(model: Any, mode: str) -> Tensor:
    """What LoRA and in soft mode the routers learn from, to scale, and logits. In training mode:
    else bitsandbytes has for a CPU a kernel of its own, with another rounding."""
    wrapped = lora(with_potentials(focus.attach(model, CONFIG, seed=0)))
    learnt = [p for name, p in wrapped.named_parameters() if "lora_" in name]
    routers = list(focus.trainable_parameters(wrapped))
    learnt += routers if mode == "soft" else []
    with focus.mode(wrapped.train(), mode):
        wrapped(ids(), labels=ids(), use_cache=False).loss.backward()
    slopes = torch.cat([p.grad.flatten() for p in learnt])
    found = torch.cat([slopes / slopes.abs().max(), logits(wrapped, mode).flatten()])
    return found.detach()


if __name__ == "__main__":
    torch.save({mode: _compared(mode) for mode in ("soft", "hard", "full")}, sys.argv[1])
