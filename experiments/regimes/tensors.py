"""Tensors of a model that is trained: whole ones of sharded ones, casts, hashes, files."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule
from torch.utils.checkpoint import checkpoint
from transformers import PreTrainedModel
from transformers.modeling_layers import GradientCheckpointingLayer

from experiments.record import first_process

ROUTER = ".focus_router."  # in the names of the routers' parameters


def whole(tensor: Tensor) -> Tensor:
    """A copy on the CPU; where FSDP has sharded the tensor every process must ask for it."""
    gather = getattr(tensor, "full_tensor", None)
    found: Tensor = tensor if gather is None else gather()
    return found.detach().cpu().contiguous().clone()


def save_bfloat16(tensors: Mapping[str, Tensor], path: Path) -> None:
    """Writes tensors as safetensors in bfloat16; sharded ones are gathered, the first process
    writes."""
    found = {name: whole(tensor).to(torch.bfloat16) for name, tensor in tensors.items()}
    if first_process():
        path.parent.mkdir(parents=True, exist_ok=True)
        save_file(found, path, metadata={"format": "pt"})


def cast(model: PreTrainedModel, dtype: torch.dtype) -> PreTrainedModel:
    """The model with its weights in a number format, in place. Routers keep theirs, and so do
    buffers: rotary frequencies in bfloat16 would be others."""
    for name, parameter in model.named_parameters():
        if ROUTER not in f".{name}":
            parameter.data = parameter.data.to(dtype)
    model.config.dtype = dtype
    return model


def layers(model: nn.Module) -> list[nn.Module]:
    """The decoder's layers: what is sharded, and computed again, one by one."""
    return [each for each in model.modules() if isinstance(each, GradientCheckpointingLayer)]


def compute_again(model: nn.Module) -> None:
    """Lets the layers compute their activations again in the backward pass, to save memory."""
    for layer in layers(model):
        layer.gradient_checkpointing = True
        layer._gradient_checkpointing_func = partial(checkpoint, use_reentrant=False)
        layer.training = True  # this flag alone: dropout within keeps its own


def reshard(model: nn.Module) -> None:
    """Puts each process's own part back where a forward pass has left whole weights."""
    for each in model.modules():
        if isinstance(each, FSDPModule):
            each.reshard()


def frozen(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Parameters that are not trained, this process's part of each."""
    for name, parameter in model.named_parameters():
        if not parameter.requires_grad:
            local = getattr(parameter, "to_local", None)
            yield name, parameter if local is None else local()


def weights_hash(tensors: Iterable[tuple[str, Tensor]]) -> str:
    """sha256 over names and bytes: equal only where every weight is bit-identical."""
    digest = hashlib.sha256()
    for name, tensor in tensors:
        digest.update(name.encode())
        digest.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy())
    return digest.hexdigest()
