"""Saving and loading the routers of an attached model: config.json + adapter.safetensors."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import PreTrainedModel

from focus.architectures import attention_layers
from focus.config import FocusConfig
from focus.model import attach, attached, detach

CONFIG_FILE = "config.json"
WEIGHTS_FILE = "adapter.safetensors"
FORMAT = 1


def adapter_state(model: PreTrainedModel) -> dict[str, Tensor]:
    """The routers' parameters and potentials: ``layers.<index>.<name>`` -> tensor."""
    return {
        f"layers.{index}.{name}": tensor
        for index, layer in attached(model).layers.items()
        if layer.router is not None
        for name, tensor in layer.router.state_dict().items()
    }


def save_adapter(model: PreTrainedModel, folder: str | Path) -> None:
    """Writes the attached model's routers to a folder, which is made if need be.

    Raises:
        ValueError: Focus is not attached.
    """
    state = attached(model)
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {name: t.detach().cpu().contiguous() for name, t in adapter_state(model).items()}
    description = {"format": FORMAT, "focus": state.config.to_dict(), "base": _base(model)}
    # The config is written last: a folder that has one is complete.
    (folder / CONFIG_FILE).unlink(missing_ok=True)
    save_file(tensors, folder / WEIGHTS_FILE)
    (folder / CONFIG_FILE).write_text(json.dumps(description, indent=2) + "\n")


def load_adapter(base_model: PreTrainedModel, folder: str | Path) -> PreTrainedModel:
    """Attaches Focus to a base model with the routers of a saved adapter.

    Returns:
        The same model, attached, in ``hard`` mode.

    Raises:
        ValueError: the folder holds no adapter, the adapter is damaged, or it belongs to a model
            of another kind or size. The base model is then left as it was.
    """
    folder = Path(folder)
    description = _read_description(folder)
    saved, here = description["base"], _base(base_model)
    for name, value in here.items():
        if saved.get(name) != value:
            raise ValueError(
                f"{folder}: the adapter was trained on a model with {name} = {saved.get(name)!r}, "
                f"this one has {value!r}; load the base model it belongs to"
            )
    config = FocusConfig.from_dict(description["focus"])
    tensors = _read_weights(folder)
    attach(base_model, config, seed=0)
    _fill(base_model, tensors, folder)
    return base_model


def _fill(model: PreTrainedModel, tensors: dict[str, Tensor], folder: Path) -> None:
    own = adapter_state(model)
    wrong = [name for name in own if name not in tensors or tensors[name].shape != own[name].shape]
    unknown = sorted(set(tensors) - set(own))
    if wrong or unknown:
        detach(model)
        raise ValueError(
            f"{folder}: {WEIGHTS_FILE} does not fit its {CONFIG_FILE} (missing or misshapen: "
            f"{wrong[:3]}, unknown: {unknown[:3]}); save the adapter again"
        )
    for name, tensor in own.items():
        tensor.copy_(tensors[name])


def _base(model: PreTrainedModel) -> dict[str, Any]:
    layers = attention_layers(model)
    return {
        "model_type": model.config.model_type,
        "hidden_size": layers[0].hidden_size,
        "key_heads": layers[0].key_heads,
        "routed_layers": [layer.index for layer in layers if not layer.local],
    }


def _read_description(folder: Path) -> dict[str, Any]:
    path = folder / CONFIG_FILE
    if not path.is_file():
        raise ValueError(f"{folder}: no {CONFIG_FILE}; give a folder written by focus.save_adapter")
    try:
        description = json.loads(path.read_text())
    except json.JSONDecodeError as error:
        raise ValueError(f"{path}: not JSON ({error}); save the adapter again") from error
    if not isinstance(description, dict) or description.get("format") != FORMAT:
        raise ValueError(f"{path}: not a Focus adapter of format {FORMAT}; save it again")
    return description


def _read_weights(folder: Path) -> dict[str, Tensor]:
    path = folder / WEIGHTS_FILE
    if not path.is_file():
        raise ValueError(f"{folder}: no {WEIGHTS_FILE}; the adapter is incomplete, save it again")
    try:
        return load_file(path)
    except (SafetensorError, OSError) as error:
        raise ValueError(f"{path}: not readable as safetensors ({error})") from error
