"""Copies, threads, and weights elsewhere."""

from __future__ import annotations

import copy
import tempfile
import threading
from functools import cache
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor

import focus
from tests import forked
from tests.composability.clients.made import CONFIG, Found, attached, ids, logits, restore
from tests.models import tiny, token_ids


def deepcopy(mode: str) -> Found:
    model = attached()
    plain, twin = logits(model, mode), copy.deepcopy(model)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    return logits(twin, mode), plain


LOADER = """
import torch
model, ids = torch.load(folder + "/model.pt", weights_only=False), torch.load(folder + "/ids.pt")
import focus
found = {}
for mode in ("soft", "hard", "full"):
    with torch.no_grad(), focus.mode(model, mode):
        found[mode] = model(ids, use_cache=False).logits
torch.save(found, folder + "/found.pt")
"""


def new_process(mode: str) -> Found:
    return _in_new_process()[mode], logits(attached(), mode)


@cache
def _in_new_process() -> dict[str, Tensor]:
    """What the loaded model gives, by mode: the process starts once."""
    model = attached()
    logits(model, "hard")  # what a pass has left on it is no hindrance
    with tempfile.TemporaryDirectory() as folder:
        torch.save(model, f"{folder}/model.pt")
        torch.save(ids(), f"{folder}/ids.pt")
        status, _, warned = forked.run(f"{folder = }\n{LOADER}", Path(folder))
        assert status == 0, warned[-2000:]
        found: dict[str, Tensor] = torch.load(f"{folder}/found.pt")
    return found


def save_pretrained(mode: str) -> Found:
    from transformers import AutoModelForCausalLM

    model = attached()
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        written = set(load_file(Path(folder) / "model.safetensors"))
        loaded = AutoModelForCausalLM.from_pretrained(folder)
    base = set(tiny("tiny-llama").state_dict())
    assert set(loaded.state_dict()) == base
    assert all("focus_router" in name for name in written - base)  # so that Trainer can resume
    assert loaded.config._attn_implementation == tiny("tiny-llama").config._attn_implementation
    focus.attach(loaded.eval(), CONFIG, seed=0)
    restore(loaded, model)
    return logits(loaded, mode), logits(model, mode)


def two_threads(mode: str) -> Found:
    """Beside a thread that runs other text in the other modes."""
    model = attached()
    plain = logits(model, mode)
    others = [each for each in ("soft", "hard", "full") if each != mode]
    stop, failed = threading.Event(), []

    def disturb() -> None:
        while not stop.is_set():
            try:
                for other in others:
                    logits(model, other, token_ids(1, 40, seed=3))
            except BaseException as error:
                failed.append(error)
                return

    thread = threading.Thread(target=disturb)
    thread.start()
    found = [logits(model, mode) for _ in range(12)]
    stop.set()
    thread.join()
    assert not failed, failed
    worst = max(found, key=lambda each: float((each - plain).abs().max()))
    return worst, plain


def offload(mode: str) -> Found:
    from accelerate import cpu_offload

    plain, model = attached(), cpu_offload(attached(), torch.device("cpu"))
    if mode == "soft":
        return logits(model, mode), logits(plain, mode)
    found = []
    for each in (model, plain):
        with focus.mode(each, mode):
            tokens = each.generate(ids(1), max_new_tokens=5, do_sample=False)
        found.append(torch.cat([logits(each, mode).flatten(), tokens.float().flatten()]))
    return found[0], found[1]
