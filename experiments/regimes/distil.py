"""Networks that choose keys, alone: they learn what full attention weighs. The model is frozen."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from transformers import PreTrainedModel

from experiments.regimes.base import Regime
from experiments.regimes.tensors import save_bfloat16
from experiments.selection.learned import SELECTORS, Learned
from experiments.settings import Distil as DistilSettings

FILE = "selectors.safetensors"


class Distil(Regime):
    """Trains the networks of a learned choice, all layers in one pass of the model."""

    settings: DistilSettings
    method: Learned

    def prepared(self, model: PreTrainedModel) -> PreTrainedModel:
        """The networks require gradients, and nothing else does; float32, whatever the model is."""
        model.requires_grad_(False)
        getattr(model, SELECTORS).float().requires_grad_()
        return model.eval()

    def units(self) -> Iterable[nn.Module]:
        """The networks are float32, whatever the model is."""
        return list(getattr(self.model, SELECTORS).values())

    def loss(self, ids: Tensor, index: int) -> Tensor:
        """Mean divergence, nats, over layers and heads."""
        with self.method.distilling(self.model, self.settings.rows) as found:
            self.model.get_decoder()(input_ids=ids, use_cache=False)
        return torch.stack(found).mean()

    def save(self, folder: Path) -> None:
        """One file of all layers."""
        save_bfloat16(dict(getattr(self.model, SELECTORS).named_parameters()), folder / FILE)

    @classmethod
    def load(cls, model: PreTrainedModel, folder: Path) -> PreTrainedModel:
        """Networks in place of those that the method drew.

        Raises:
            ValueError: the model has none: it was built for another method.
        """
        if not hasattr(model, SELECTORS):
            raise ValueError(f"{folder}: networks that choose keys go with their own method; start "
                             "from what they were trained on instead")  # fmt: skip
        tensors = {name: tensor.float() for name, tensor in load_file(folder / FILE).items()}
        getattr(model, SELECTORS).load_state_dict(tensors)
        return model
