"""All weights of the model, under the method's mask."""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors.torch import load_file
from transformers import PreTrainedModel

from experiments.record import first_process
from experiments.regimes.base import Regime
from experiments.regimes.tensors import ROUTER, save_bfloat16

FILE = "model.safetensors"


class Full(Regime):
    """Trains the weights, with dropout as the architecture has it. Routers, where there are any,
    stay as they are."""

    def prepared(self, model: PreTrainedModel) -> PreTrainedModel:
        """All weights but the routers'."""
        model.train()
        for name, parameter in model.named_parameters():
            parameter.requires_grad_(ROUTER not in f".{name}")
        for layer in model.modules():
            if hasattr(layer, "focus_router"):
                layer.focus_router.eval()  # in training mode potentials would learn
        return model

    def save(self, folder: Path) -> None:
        """Weights as safetensors, with the model's config beside them."""
        tensors = {name: p for name, p in self.model.named_parameters() if p.requires_grad}
        save_bfloat16(tensors, folder / FILE)
        if first_process():
            self.model.config.save_pretrained(folder)

    @classmethod
    def load(cls, model: PreTrainedModel, folder: Path) -> PreTrainedModel:
        """The model with these weights.

        Raises:
            ValueError: they are another model's.
        """
        found = load_file(folder / FILE)
        own = {n: p for n, p in model.named_parameters() if ROUTER not in f".{n}"}
        if {n: p.shape for n, p in own.items()} != {n: t.shape for n, t in found.items()}:
            raise ValueError(f"{folder / FILE}: its weights are not this model's")
        with torch.no_grad():
            for name, parameter in own.items():
                parameter.copy_(found[name])
        return model
