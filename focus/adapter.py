"""Adapters of an attached model: save, load, several by name."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from transformers import PreTrainedModel

from focus.architectures import AttentionLayer, attention_layers, without_weights
from focus.fingerprint import beside, fingerprint, gathered, same
from focus.hub import FocusAdapter, own_folder
from focus.model import AnyModel, attach
from focus.named import activate, adapter_of, on_device, refuse_unreadable, routers_of, state_of
from focus.state import DEFAULT, Adapter, FocusState, attached, attached_whole, transformers_model


def save_adapter(model: nn.Module, folder: str | Path, name: str | None = None,
                 card: Mapping[str, Any] | str | Path | None = None) -> Path:  # fmt: skip
    """Writes an adapter of an attached model: ``adapter_config.json``,
    ``adapter_model.safetensors`` and, where there is none, a model card ``README.md``.

    Routers that FSDP has sharded are gathered, so every process must call this; where
    torch.distributed runs, the first process alone writes.

    Args:
        model: an attached model.
        folder: made if need be. No file of others is touched: in a model's folder, or one of
            another library's adapter, the files go to its subfolder ``focus``. Save a model
            first: one that is saved beside an adapter cannot be loaded (transformers says
            ``KeyError: 'FOCUS'``) until this is called again.
        name: of the adapter; None: the active one.
        card: facts of the training run for the card: a mapping, or the path of a ``run.json``.

    Returns:
        The folder that the files are in.

    Raises:
        ValueError: no folder is named, Focus is not attached, or has no adapter of this name;
            layers were taken out of the model since; or the routers are parametrised.
    """
    _check_folder(folder)
    adapter = describe(model, name)
    if dist.is_available() and dist.is_initialized() and dist.get_rank() > 0:
        return own_folder(Path(folder))
    return adapter.write(folder, card)


def describe(model: nn.Module, name: str | None = None) -> FocusAdapter:
    """A :class:`focus.FocusAdapter` with copies of an adapter's tensors, to save or to push."""
    state, inner = attached_whole(model), transformers_model(model)
    adapter = adapter_of(state, name)
    with on_device(adapter.routers.values()):
        refuse_unreadable(adapter.routers.values())
        tensors = {key: gathered(tensor).detach().cpu().clone(memory_format=torch.contiguous_format)
                   for key, tensor in state_of(adapter.routers).items()}  # fmt: skip
    hashes, reason = fingerprint(inner)
    base = {
        "base_model_name_or_path": inner.name_or_path or None,
        "revision": getattr(inner.config, "_commit_hash", None),
        **_sizes(inner, list(state.layers.values())),
        "vocab_size": _vocabulary(inner),
        "fingerprint": hashes,
        "peft": beside(inner),
    }
    if hashes is None:
        base["fingerprint_left_out"] = reason
    return FocusAdapter(adapter.config, tensors, base)


def load_adapter(base_model: AnyModel, folder: str | Path | FocusAdapter, name: str = DEFAULT,
                 revision: str | None = None, check_base: bool = True) -> AnyModel:  # fmt: skip
    """Puts a saved adapter on a model.

    A model without Focus is attached, with this adapter active. An attached one keeps its active
    adapter and gets this one beside it; :func:`set_adapter` switches.

    Args:
        base_model: the model that the adapter was trained on.
        folder: what :func:`save_adapter` wrote, the id of a repository on the Hugging Face hub, or
            a :class:`focus.FocusAdapter`.
        name: of the adapter on this model.
        revision: of the repository.
        check_base: refuse a model of the same shape with other weights.

    Returns:
        The same model.

    Raises:
        ValueError: the adapter is not there, is damaged, or belongs to another model; the name is
            taken; the model has no weights yet. The model is then left as it was.
    """
    inner = transformers_model(base_model)
    state: FocusState | None = inner.__dict__.get("focus_state")
    _check_name(name)
    if state is not None and name in state.adapters:
        raise ValueError(
            f"name: the model has an adapter {name!r} already; give another name, "
            f"focus.delete_adapter(model, {name!r}) if it is not in use, or focus.detach(model)"
        )
    found = folder
    if not isinstance(found, FocusAdapter):
        _check_folder(found)
        found = FocusAdapter.from_pretrained(found, revision=revision)
    if without_weights(inner):
        raise ValueError("base_model: its weights are on the meta device; load them first")
    layers = attention_layers(inner)
    _check_sizes(found, _sizes(inner, layers))
    routers = routers_of(found.config, layers, found.tensors)
    if check_base:
        _check_weights(found, inner)
    adapter = Adapter(found.config, routers)
    if state is None:
        state = attached(attach(base_model, found.config, seed=0))
        state.adapters = {name: adapter}
        activate(state, name)
    state.adapters[name] = adapter
    return base_model


def set_adapter(model: AnyModel, name: str) -> AnyModel:
    """Makes another of the model's adapters the active one: its routers and its config.

    An optimiser, or DistributedDataParallel, that was made before knows the former adapter's
    parameters alone.

    Raises:
        ValueError: Focus is not attached, has no adapter of this name, or the model is sharded or
            has lost layers since.
    """
    state = attached_whole(model)
    _check_name(name)
    adapter_of(state, name)
    if name != state.active:
        activate(state, name)
    return model


def adapters(model: nn.Module) -> list[str]:
    """Names of the model's adapters, the active one first.

    Raises:
        ValueError: Focus is not attached.
    """
    state = attached(model)
    return [state.active, *(name for name in state.adapters if name != state.active)]


def delete_adapter(model: AnyModel, name: str) -> AnyModel:
    """Forgets an adapter that is not active.

    Raises:
        ValueError: Focus is not attached, has no adapter of this name, or it is the active one.
    """
    state = attached(model)
    _check_name(name)
    adapter_of(state, name)
    if name == state.active:
        raise ValueError(
            f"name: {name!r} is the active adapter; focus.set_adapter to another first, or "
            "focus.detach(model) to remove Focus"
        )
    del state.adapters[name]
    return model


def _sizes(model: PreTrainedModel, layers: list[AttentionLayer]) -> dict[str, Any]:
    routed = [layer for layer in layers if not layer.local]
    return {
        "model_type": model.config.get_text_config(decoder=True).model_type,
        "hidden_size": layers[0].hidden_size,
        "query_heads": [layer.query_heads for layer in routed],
        "key_heads": [layer.key_heads for layer in routed],
        "routed_layers": [layer.index for layer in routed],
    }


def _vocabulary(model: PreTrainedModel) -> int:
    weight: Any = model.get_input_embeddings().weight
    return int(weight.shape[0])


def _check_sizes(adapter: FocusAdapter, here: Mapping[str, Any]) -> None:
    saved = dict(adapter.base)
    if isinstance(saved.get("routed_layers"), list):
        saved["number of routed layers"] = len(saved["routed_layers"])
        here = {"number of routed layers": len(here["routed_layers"]), **here}
    for name, value in here.items():
        if saved.get(name) != value:
            raise ValueError(
                f"adapter: it was trained on a model with {name} = {saved.get(name)!r}, this one "
                f"has {value!r}; load the base model it belongs to"
            )


def _check_name(name: object) -> None:
    if not isinstance(name, str) or not name:
        raise ValueError(f"name: must be a string that is not empty, got {name!r}")


def _check_folder(folder: object) -> None:
    if not isinstance(folder, str | Path) or not str(folder):
        raise ValueError(f"folder: must be a path that is not empty, got {folder!r}")


def _check_weights(adapter: FocusAdapter, model: PreTrainedModel) -> None:
    saved = adapter.base.get("fingerprint")
    here, reason = fingerprint(model)
    if saved is None or here is None:
        reason = reason or adapter.base.get("fingerprint_left_out") or "the adapter has none"
        warnings.warn(
            f"base_model: its weights cannot be compared with those that the adapter was trained "
            f"on: {reason}",
            stacklevel=3,
        )
    elif same(saved, here):
        if adapter.base.get("peft") not in (None, beside(model)):
            warnings.warn("base_model: the routers were trained beside an adapter of peft's that "
                          "this model has not, or has otherwise; load that one, too",
                          stacklevel=3)  # fmt: skip
    else:
        former, now = adapter.base.get("vocab_size"), _vocabulary(model)
        if former not in (None, now):
            cure = ("load the adapter before resize_token_embeddings" if now > former
                    else "load it on the resized model that it was trained on")  # fmt: skip
            raise ValueError(
                f"base_model: has {now} token embeddings, the model that the adapter was trained "
                f"on had {former}, so their weights cannot be compared; {cure}, or pass "
                "check_base=False"
            )
        trained_on = adapter.base.get("base_model_name_or_path") or "a model without a name"
        name = model.name_or_path or "this model"
        changed = (" with weights that were changed before (a LoRA merged into it, say: do the "
                   "same first)") * (name == trained_on)  # fmt: skip
        merged = " (as where peft's adapter has been merged)" * bool(adapter.base.get("peft"))
        raise ValueError(
            f"base_model: {name} has other weights than the model that the adapter was trained on "
            f"({trained_on}{changed}), though of the same shape; load that one, or pass "
            f"check_base=False to take the adapter all the same{merged}"
        )
