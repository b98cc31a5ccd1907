"""All weights, from random ones of the model's own shape."""

from __future__ import annotations

import torch
from transformers import AutoModelForCausalLM, PreTrainedModel

from experiments.regimes.full import Full


class Scratch(Full):
    """As ``full``, from weights that the architecture draws by the seed."""

    @classmethod
    def original(cls, model: PreTrainedModel, seed: int) -> PreTrainedModel:
        """The model with random weights in place of its own."""
        device = next(model.parameters()).device
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            new = AutoModelForCausalLM.from_config(model.config, dtype=torch.float32)
        with torch.no_grad():
            for own, drawn in zip(model.parameters(), new.parameters(), strict=True):
                own.copy_(drawn.to(device))
        return model
