"""A pretrained model that processes share: each reads its own part of the weights, and no more.

:func:`bare` builds the model with its weights on the meta device and its buffers real. What is
trained beside them is drawn within :func:`as_on_cpu`, by the code and the seed that one process
has. After ``fully_shard``, :func:`fill` reads each process's part from the safetensors files,
slice by slice (torch's own reader of such files), with a LoRA's part of it added.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from accelerate import init_empty_weights
from torch import Tensor, nn
from torch.distributed import checkpoint
from torch.distributed.checkpoint.planner import ReadItem
from transformers import AutoModelForCausalLM, PreTrainedModel

from experiments.sources import models

CURE = ("fetch the model again; where its files are as published, transformers renames them when "
        "it reads a model whole: train by strategy ddp")  # fmt: skip


@dataclass(frozen=True)
class Update:
    """What a LoRA adds to a weight: scale * up @ down, where the weight is (out, in), as a linear
    layer has it. Formed in float64, as :class:`experiments.regimes.lora.Lora` forms it.

    Attributes:
        up: (out, rank); down: (rank, in).
    """

    up: Tensor
    down: Tensor
    scale: float

    def rows(self, first: int, like: Tensor) -> Tensor:
        """Rows from ``first`` on, as many as those of the weight, float64 on its device."""
        up, down = (each.to(like.device, torch.float64) for each in (self.up, self.down))
        return self.scale * (up[first : first + len(like)] @ down)


class Merging(checkpoint.DefaultLoadPlanner):
    """Reads weights with what is added to some of them, by their names in the files: the sum is
    float32, and rounded once to the weight's own format."""

    def __init__(self, updates: Mapping[str, Update]) -> None:
        super().__init__()
        self.updates = updates

    def resolve_tensor(self, read_item: ReadItem) -> Tensor:
        """Where a slice is read to."""
        own: Tensor = super().resolve_tensor(read_item)
        merged = read_item.dest_index.fqn in self.updates
        return torch.empty_like(own, dtype=torch.float32) if merged else own

    def commit_tensor(self, read_item: ReadItem, tensor: Tensor) -> None:
        """Takes a slice that was read."""
        update = self.updates.get(read_item.dest_index.fqn)
        if update is not None:
            merged = tensor.double() + update.rows(read_item.storage_offsets[0], tensor)
            super().resolve_tensor(read_item).copy_(merged.float())


def readable(name: str) -> bool:
    """Whether a model lies in safetensors files as it is: not tiny, pickled or quantised."""
    if name in models.TINY:
        return False
    plain = getattr(models.config(name), "quantization_config", None) is None
    return plain and any(models.folder_of(name).glob("*.safetensors"))


def bare(name: str, dtype: torch.dtype) -> PreTrainedModel:
    """A model in evaluation mode, its weights on the meta device, its buffers as ever."""
    with init_empty_weights(include_buffers=False):
        model: PreTrainedModel = AutoModelForCausalLM.from_config(models.config(name), dtype=dtype)
    model.tie_weights()  # accelerate has made two of them
    return model.eval()


@contextmanager
def as_on_cpu(model: PreTrainedModel) -> Iterator[None]:
    """Weights on the meta device look as if they lay on the CPU, one zero each, so that what is put
    beside them is drawn there. The embedding stays: a model that has no weights is not run."""
    kept: list[tuple[nn.Module, str, nn.Parameter]] = []
    embedding = model.get_input_embeddings().weight
    for module in model.modules():
        for name, parameter in module._parameters.items():
            if parameter is not None and parameter.is_meta and parameter is not embedding:
                zero = torch.zeros((), dtype=parameter.dtype).expand(parameter.shape)
                module._parameters[name] = nn.Parameter(zero, parameter.requires_grad)
                kept.append((module, name, parameter))
    try:
        yield
    finally:
        for module, name, parameter in kept:
            trained = module._parameters[name].requires_grad  # type: ignore[union-attr]
            module._parameters[name] = parameter.requires_grad_(trained)


def fill(model: PreTrainedModel, name: str, updates: Mapping[str, Update] | None = None) -> None:
    """Reads this process's part of every weight that is on the meta device; every process must
    call it.

    Args:
        model: from :func:`bare`, after ``fully_shard``.
        name: of the model.
        updates: of its weights, by their names.

    Raises:
        ValueError: no file has a weight, or has it in another shape; or the files hold two weights
            where the model ties them to one.
    """
    empty = _empty(model)
    reader = checkpoint.HuggingFaceStorageReader(str(models.folder_of(name)))
    known: Mapping[str, Any] = reader.read_metadata().state_dict_metadata
    keys = {each: key for each in model.state_dict() if (key := _key(model, each, known))}
    _check(name, empty, keys, {key: tuple(each.size) for key, each in known.items()})
    read: dict[str, Tensor] = {keys[each]: buffer for each, buffer in model.named_buffers()
                               if each in keys}  # fmt: skip
    new: dict[str, nn.Parameter] = {}
    twice: list[tuple[str, str]] = []
    for names, old in empty.items():
        there = torch.empty_like(old, device=old.device_mesh.device_type)
        new |= dict.fromkeys(names, nn.Parameter(there, old.requires_grad))  # one, where tied
        first, *others = dict.fromkeys(keys[each] for each in names if each in keys)
        read[first] = there
        read |= {other: torch.empty_like(there) for other in others}
        twice += [(first, other) for other in others]
    merging = Merging({keys[each]: update for each, update in (updates or {}).items()})
    checkpoint.load(read, storage_reader=reader, planner=merging)
    if apart := [pair for pair in twice if not torch.equal(*(read[key] for key in pair))]:
        raise ValueError(f"model {name}: its config ties {' and '.join(apart[0])}, which differ in "
                         "its files; set tie_word_embeddings to false there")  # fmt: skip
    model.load_state_dict(new, strict=False, assign=True)


def _empty(model: nn.Module) -> dict[tuple[str, ...], Any]:
    """Weights on the meta device, each by all its names."""
    found: dict[int, tuple[list[str], nn.Parameter]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        if parameter.is_meta:
            found.setdefault(id(parameter), ([], parameter))[0].append(name)
    return {tuple(names): parameter for names, parameter in found.values()}


def _key(model: PreTrainedModel, name: str, files: Mapping[str, Any]) -> str | None:
    """What the files call a tensor; None: they have none. peft puts a weight into a module of its
    own, and files of a decoder alone (GPT-2's) have no prefix."""
    own = name.replace(".base_layer.", ".")
    spelt = own, own.removeprefix(f"{model.base_model_prefix}.")
    return next((each for each in spelt if each in files), None)


def _check(name: str, empty: Mapping[tuple[str, ...], Tensor], keys: Mapping[str, str],
           files: Mapping[str, tuple[int, ...]]) -> None:  # fmt: skip
    missing = [names[0] for names in empty if not any(each in keys for each in names)]
    if missing:
        raise ValueError(f"model {name}: no file has {_some(missing)}; {CURE}")
    pairs = [(files[keys[each]], each, tuple(old.shape))
             for names, old in empty.items() for each in names if each in keys]  # fmt: skip
    other = [f"{each} {found} for {wanted}" for found, each, wanted in pairs if found != wanted]
    if other:
        raise ValueError(f"model {name}: its files have another shape of {_some(other)}; {CURE}")


def _some(names: list[str], most: int = 3) -> str:
    more = f" and {len(names) - most} more" * (len(names) > most)
    return ", ".join(names[:most]) + more
