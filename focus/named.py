"""Several adapters on one attached model, by name; one of them is active.

The active adapter's routers sit in the attention modules as ``focus_router``, where devices, shards
and optimisers find them. The others wait in the model's state and follow it to its device when they
are switched in.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from itertools import chain

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, distribute_tensor

from focus.architectures import AttentionLayer
from focus.config import FocusConfig
from focus.routing import Router
from focus.state import Adapter, FocusState


# Under inference_mode a caller gets routers that can learn, too.
@torch.inference_mode(False)
def new_routers(config: FocusConfig, layers: Iterable[AttentionLayer],
                generator: torch.Generator | None = None) -> dict[int, Router]:  # fmt: skip
    """Randomly initialised routers of the layers that are not local, on the default device."""
    return {
        layer.index: Router(
            config, layer.hidden_size, layer.key_heads, layer.query_heads, generator
        )
        for layer in layers
        if not layer.local
    }


@torch.inference_mode(False)
def routers_of(config: FocusConfig, layers: Iterable[AttentionLayer],
               tensors: Mapping[str, Tensor]) -> dict[int, Router]:  # fmt: skip
    """Routers that hold saved tensors, ``layers.<index>.<name>``; nothing is initialised first.

    Raises:
        ValueError: tensors are missing, superfluous, misshapen or not finite.
    """
    with torch.device("meta"):
        routers = new_routers(config, layers)
    wanted = state_of(routers)
    _check_tensors(wanted, tensors)
    for index, router in routers.items():
        prefix = f"layers.{index}."
        own = {
            # A copy: the routers are trained further, what they came from is not.
            name: tensors[prefix + name].detach().to("cpu", like.dtype, copy=True)
            for name, like in router.state_dict().items()
        }
        router.load_state_dict(own, assign=True)
    return routers


@torch.no_grad()
def take(state: FocusState, tensors: Mapping[str, Tensor]) -> None:
    """Copies saved tensors into the routers that are there, or, where :func:`routers_of` would
    refuse them, none."""
    refuse_unreadable(state.routers.values())
    own = state_of(state.routers)
    _check_tensors(own, tensors)
    for name, tensor in own.items():
        source = tensors[name].to(tensor.device, tensor.dtype)
        if isinstance(tensor, DTensor):
            source = distribute_tensor(source, tensor.device_mesh, tensor.placements)
        tensor.copy_(source)


def state_of(routers: Mapping[int, Router]) -> dict[str, Tensor]:
    """The routers' parameters and potentials, ``layers.<index>.<name>``, themselves (no copy)."""
    return {
        f"layers.{index}.{name}": tensor
        for index, router in routers.items()
        for name, tensor in router.state_dict().items()
    }


def _check_tensors(wanted: Mapping[str, Tensor], tensors: Mapping[str, Tensor]) -> None:
    cure = "the adapter is damaged or of another config; save it again"
    missing, unknown = sorted(set(wanted) - set(tensors)), sorted(set(tensors) - set(wanted))
    if missing or unknown:
        raise ValueError(f"adapter: missing {missing[:3]}, unknown {unknown[:3]}: {cure}")
    for name, like in wanted.items():
        found = tensors[name]
        if found.shape != like.shape:
            raise ValueError(
                f"adapter: {name} is of shape {tuple(found.shape)}, its config and the model ask "
                f"for {tuple(like.shape)}: {cure}"
            )
        if found.is_floating_point() != like.is_floating_point() or found.dtype == torch.bool:
            raise ValueError(f"adapter: {name} is {found.dtype}, not {like.dtype}: {cure}")
        if not bool(torch.isfinite(found.to(like.dtype)).all()):
            raise ValueError(f"adapter: {name} holds NaN or infinite values: {cure}")
        if not like.is_floating_point() and bool((found < 0).any()):
            raise ValueError(f"adapter: {name} is negative: {cure}")


def activate(state: FocusState, name: str) -> None:
    """Puts an adapter's routers into the attention modules in place of those that are there; leaves
    a sharded model, which it refuses, as it was."""
    adapter = state.adapters[name]
    refuse_sharded(state.layers.values())
    for index, layer in state.layers.items():
        if layer.local:
            continue
        former = layer.module._modules.get("focus_router")
        if hasattr(former, "_hf_hook"):  # accelerate's, which brings it for its own calls alone
            from accelerate.hooks import remove_hook_from_module  # not everybody has it

            remove_hook_from_module(former)
        router = adapter.routers[index].to(device_of(layer.module))
        layer.module.focus_router = router.train(layer.module.training)
    state.active, state.config = name, adapter.config


@contextmanager
def on_device(routers: Iterable[Router]) -> Iterator[None]:
    """The parameters of routers that accelerate has offloaded are there meanwhile."""
    with ExitStack() as stack:
        for router in routers:
            if hasattr(router, "_hf_hook"):
                from accelerate.utils import align_module_device

                stack.enter_context(align_module_device(router))
        yield


def refuse_sharded(layers: Iterable[AttentionLayer]) -> None:
    """Refuses a model that takes no further parameters in: each process would train them apart."""
    if any(hasattr(p, "full_tensor") for layer in layers for p in layer.module.parameters()):
        raise ValueError(
            "model: its weights are spread over several processes (fully_shard, or a tp_plan), "
            "which does not take routers in afterwards; attach, load and set adapters before "
            "fully_shard, and load without tp_plan"
        )


def refuse_unreadable(routers: Iterable[Router]) -> None:
    """Refuses to read routers whose parameters are others than an adapter holds (a parametrisation
    computes them), or that FSDP's first version keeps in one flat piece."""
    routers = list(routers)
    names = {name for router in routers for name, _ in router.named_parameters()}
    other = sorted(names - {"projection", "centroids"})
    if other:
        raise ValueError(
            f"focus_router: is parametrised ({other[0]}), which no adapter holds; make its values "
            "plain again by torch.nn.utils.parametrize.remove_parametrizations(router, name)"
        )
    own = [router._parameters.get("centroids") for router in routers]
    if any(each is None or each.dim() < 4 for each in own):
        raise ValueError(
            "model: FullyShardedDataParallel holds the routers in pieces; save within "
            "FullyShardedDataParallel.summon_full_params(model), or shard by fully_shard "
            "(accelerate: fsdp_version=2)"
        )


def adapter_of(state: FocusState, name: str | None = None) -> Adapter:
    """The model's adapter of this name, which it must have; None: the active one."""
    name = state.active if name is None else name
    if name not in state.adapters:
        known = ", ".join(repr(each) for each in state.adapters)
        raise ValueError(f"name: the model has no adapter {name!r}; it has {known}")
    return state.adapters[name]


def device_of(module: nn.Module) -> torch.device:
    """Where a module computes: what accelerate has offloaded lies on meta until it runs."""
    hooks = (getattr(each, "_hf_hook", None) for each in module.modules())
    device = next((hook.execution_device for hook in hooks if hook is not None), None)
    if device is not None:
        return torch.device(device)
    own = (tensor for name, tensor in chain(module.named_parameters(), module.named_buffers())
           if not name.startswith("focus_router."))  # fmt: skip
    found = next(own, None)
    # torch's dynamic quantisation, of the CPU alone, hides weights in objects of its own.
    return torch.device("cpu") if found is None else found.device
