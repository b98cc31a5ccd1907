"""Low-rank updates of the model's own projections (peft), under the method's mask."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, PeftModel, inject_adapter_in_model
from peft.tuners.lora import LoraLayer
from safetensors.torch import load_file
from torch import nn
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from experiments.record import first_process, write_json
from experiments.regimes.base import Regime
from experiments.regimes.tensors import save_bfloat16
from experiments.settings import Lora as LoraSettings
from experiments.sources.sharded import Update

NAME = "default"  # of the adapter; peft leaves it out of its files
PREFIX = "base_model.model."  # of the names in peft's files
DOWN, UP = ".lora_A.weight", ".lora_B.weight"  # their ends


class Lora(Regime):
    """Trains two matrices, float32, beside each of the targets; the model keeps its own format."""

    settings: LoraSettings

    def prepared(self, model: PreTrainedModel) -> PreTrainedModel:
        """Adapters drawn by the seed.

        Raises:
            ValueError: the model has no modules of these names.
        """
        self.config = lora_config(self.settings)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.seed)
            try:
                inject_adapter_in_model(self.config, model, NAME)
            except ValueError as error:
                path = f"experiments.{self.cell.block}.regime.targets"
                raise ValueError(f"{path}: {error}") from error
        for name, parameter in model.named_parameters():
            parameter.requires_grad_("lora_" in name)
            if "lora_" in name:
                parameter.data = parameter.data.float()
        return model.eval()

    def units(self) -> Iterable[nn.Module]:
        """The adapters are float32, whatever the model is."""
        return [part for layer in lora_layers(self.model)
                for part in (layer.lora_A[NAME], layer.lora_B[NAME])]  # fmt: skip

    def save(self, folder: Path) -> None:
        """In peft's own format."""
        tensors = {PREFIX + name.replace(f".{NAME}.", "."): parameter
                   for name, parameter in self.model.named_parameters()
                   if "lora_" in name}  # fmt: skip
        save_bfloat16(tensors, folder / "adapter_model.safetensors")
        if first_process():
            write_json(folder / "adapter_config.json", plain(self.config))

    @classmethod
    def load(cls, model: PreTrainedModel, folder: Path) -> PreTrainedModel:
        """The model with the updates merged into its weights.

        The updates are formed in float64: products in float32 end in other last digits on other
        processors, and routers that are trained on the merged model know it by its weights.
        """
        wrapped = PeftModel.from_pretrained(model, str(folder))
        for layer in lora_layers(wrapped):
            for part in (layer.lora_A[NAME], layer.lora_B[NAME]):
                part.double()
            weight = layer.get_base_layer().weight
            weight.data = (weight.data.double() + layer.get_delta_weight(NAME)).to(weight.dtype)
        return wrapped.unload()

    @classmethod
    def updates(cls, model: PreTrainedModel, folder: Path) -> dict[str, Update]:
        """What :meth:`load` merges, by the names of the model's weights, which need not be there
        yet."""
        config = json.loads((folder / "adapter_config.json").read_text(encoding="utf-8"))
        tensors = load_file(folder / "adapter_model.safetensors")
        found = {}
        for name in (key.removesuffix(DOWN) for key in tensors if key.endswith(DOWN)):
            up, down = tensors[name + UP], tensors[name + DOWN]
            module = name.removeprefix(PREFIX)
            if isinstance(model.get_submodule(module), Conv1D):  # GPT-2's: weights are (in, out)
                up, down = down.T, up.T
            found[f"{module}.weight"] = Update(up, down, config["lora_alpha"] / config["r"])
        return found


def lora_config(settings: LoraSettings) -> LoraConfig:
    """peft's own config of the regime."""
    return LoraConfig(
        r=settings.rank, lora_alpha=settings.alpha, lora_dropout=0.0, bias="none",
        target_modules=list(settings.targets), task_type="CAUSAL_LM",
    )  # fmt: skip


def plain(config: LoraConfig) -> dict[str, Any]:
    """The config as peft's file has it; sets in an order that is the same in every process."""
    return {key: sorted(value) if isinstance(value, set) else value
            for key, value in sorted(config.to_dict().items())}  # fmt: skip


def lora_layers(model: nn.Module) -> list[Any]:
    """The layers that peft has wrapped."""
    return [each for each in model.modules() if isinstance(each, LoraLayer)]
