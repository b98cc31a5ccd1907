"""Models without weights: built on the meta device, with routers, and counted."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForCausalLM, PretrainedConfig, PreTrainedModel

import focus
from experiments.regimes.tensors import ROUTER
from experiments.settings import read_yaml
from experiments.sources import catalogue, models

FILE = Path(__file__).with_name("models.yaml")


def names() -> list[str]:
    """Models whose shape is known here: fetched ones, those of models.yaml, tiny ones."""
    sources = [name for name, each in catalogue.sources().items() if each.role == "model"]
    fetched = [name for name in sources if (catalogue.ROOT / name / "config.json").is_file()]
    return list(dict.fromkeys([*fetched, *_written(), *models.TINY]))


def config(name: str) -> PretrainedConfig:
    """A model's transformers config.

    Raises:
        ValueError: an unknown name; the message has those that are known.
    """
    if name in models.TINY or (catalogue.ROOT / name / "config.json").is_file():
        return models.config(name)
    if name not in _written():
        raise ValueError(
            f"model {name}: unknown; known are {', '.join(names())}, and what else of sources.yaml "
            "or of the folder FOCUS_DATA `python -m experiments.stages.fetch NAME` has brought"
        )
    return AutoConfig.for_model(**_written()[name])


@cache
def _written() -> dict[str, dict[str, Any]]:
    return read_yaml(FILE)


def build(shape: PretrainedConfig, dtype: torch.dtype = torch.float32,
          routed: focus.FocusConfig | None = None) -> PreTrainedModel:  # fmt: skip
    """A model on the meta device, its weights in ``dtype`` and frozen; with float32 routers, the
    only ones that are trained, where ``routed`` is given."""
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(shape, dtype=dtype).eval().requires_grad_(False)
        if routed is not None:
            focus.attach(model, routed)
            for router in focus.state.attached(model).routers.values():
                router.train()
    return model


def materialise(model: nn.Module) -> None:
    """Puts tensors of the present fake mode in place of the meta device's, tied ones tied."""
    made: dict[int, Tensor] = {}
    for module in model.modules():
        for own in (module._parameters, module._buffers):
            for name, old in own.items():
                if old is None:
                    continue
                if id(old) not in made:
                    new = torch.empty(old.shape, dtype=old.dtype, device="cpu")
                    kept = isinstance(old, nn.Parameter)
                    made[id(old)] = nn.Parameter(new, old.requires_grad) if kept else new
                own[name] = made[id(old)]


def routers(model: nn.Module) -> list[nn.Parameter]:
    """The routers' parameters."""
    return [p for name, p in model.named_parameters() if ROUTER in f".{name}"]


def count(tensors: Iterable[Tensor]) -> int:
    """How many numbers they hold."""
    return sum(each.numel() for each in tensors)


def size(tensors: Iterable[Tensor]) -> int:
    """Bytes of the tensors."""
    return sum(each.numel() * each.element_size() for each in tensors)
