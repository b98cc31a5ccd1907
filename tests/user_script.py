"""What a user writes; `make lint` checks it by mypy --strict, tests/test_install.py runs it."""

import torch
from transformers import AutoModelForCausalLM, PreTrainedModel

import focus


def kept(folder: str) -> dict[int, float]:
    model: PreTrainedModel = AutoModelForCausalLM.from_pretrained(folder)
    focus.attach(model, focus.FocusConfig(num_groups=4, top_k=1, window=8))
    with torch.no_grad(), focus.mode(model, "hard"):
        model(torch.arange(40)[None])
    return focus.density(model)
