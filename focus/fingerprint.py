"""A fingerprint of a base model's weights: are these the ones that an adapter was trained on?"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

VALUES = 64  # of each weight
WEIGHTS = 1024  # at most, evenly over the model
FORMATS = {"bfloat16": torch.bfloat16, "float16": torch.float16}
FULL = (torch.float64, torch.float32, torch.bfloat16, torch.float16)


def fingerprint(model: PreTrainedModel, gather: bool = False) -> tuple[dict[str, str] | None, str]:
    """Hashes of evenly spaced values of every matrix of a model's decoder, adapters of peft aside.

    Values are rounded to bfloat16 for one hash and to float16 for another, so that a checkpoint has
    a hash in common with itself loaded in float32, bfloat16 or float16 (:func:`same`); one that was
    fine-tuned, or has a LoRA merged into it, has none. What is read is 64 values of at most 1,024
    matrices, so that it takes a fraction of a second whatever the model's size.

    Args:
        gather: weights that FSDP has spread over processes are gathered, one at a time; every
            process must then ask for the fingerprint.

    Returns:
        Hashes by format, or None with the reason: weights that are quantised, not there, or
        spread over several processes and not to be gathered.
    """
    weights = list(_matrices(model.get_decoder()))
    for weight in weights:
        if weight.is_meta:
            return None, "weights are offloaded or on the meta device"
        spread = hasattr(weight, "full_tensor")
        if spread and not gather:
            return None, "weights are spread over several processes"
        # torchao's and quanto's are of a type of their own
        plain = spread or type(weight) in (Tensor, nn.Parameter)
        if weight.dtype not in FULL or not plain:
            kind = weight.dtype if plain else type(weight).__name__
            return None, f"weights are quantised ({kind})"
    if not weights:
        return None, "the model has no weight matrix"
    packed = next((m for m in model.get_decoder().modules() if hasattr(m, "_packed_params")), None)
    if packed is not None:
        return None, f"weights are quantised ({type(packed).__name__})"
    values = torch.cat([_sampled(each) for each in weights[:: -(-len(weights) // WEIGHTS)]])
    return {name: _hashed(values, dtype) for name, dtype in FORMATS.items()}, ""


def beside(model: PreTrainedModel) -> str | None:
    """A hash of the weights that peft's adapters add to a decoder; None where there are none, or
    they cannot be read. Those that were merged are in the matrices of :func:`fingerprint`."""
    layers = [module for module in model.get_decoder().modules()
              if isinstance(getattr(module, "base_layer", None), nn.Module)]  # fmt: skip
    added = [weight for layer in layers for name, weight in layer.named_parameters()
             if not name.startswith("base_layer.") and weight.dim() > 1]  # fmt: skip
    readable = all(each.dtype in FULL and not each.is_meta and not hasattr(each, "full_tensor")
                   for each in added)  # fmt: skip
    if not added or not readable:
        return None
    return _hashed(torch.cat([_sampled(weight) for weight in added]), torch.bfloat16)


def same(one: dict[str, str], other: dict[str, str]) -> bool:
    """Whether two fingerprints are of the same checkpoint."""
    return any(one.get(name) == other.get(name) is not None for name in FORMATS)


def gathered(tensor: Tensor) -> Tensor:
    """The whole of a tensor that may be spread over processes, each of which must ask for it."""
    gather = getattr(tensor, "full_tensor", None)  # DTensor; not every build of torch has it
    whole: Tensor = tensor if gather is None else gather()
    return whole


def _sampled(weight: Tensor) -> Tensor:
    """At most 64 evenly spaced values of a weight, float32 on the CPU."""
    flat = gathered(weight).detach().reshape(-1)
    return flat[:: max(1, flat.numel() // VALUES)][:VALUES].float().cpu()


def _hashed(values: Tensor, dtype: torch.dtype) -> str:
    return hashlib.sha256(values.to(dtype).view(torch.int16).numpy().tobytes()).hexdigest()


def _matrices(module: nn.Module) -> Iterator[Tensor]:
    """Weights of two or more dimensions in the order of the modules; of a layer that peft wraps,
    those of the layer inside."""
    for name in ("base_layer", "original_module"):
        inside = getattr(module, name, None)
        if isinstance(inside, nn.Module):
            yield from _matrices(inside)
            return
    yield from (p for p in module._parameters.values() if p is not None and p.dim() > 1)
    for name, child in module.named_children():
        if name != "focus_router":
            yield from _matrices(child)
