"""Which transformers models Focus attaches to, found by structure and not by a list of names.

A self-attention module qualifies when it has a ``layer_idx``, is causal, and hands query, key and
value to transformers' attention interface with the keywords that it was called with. Every decoder
layer of the model must have one. :func:`probe` checks on a short forward pass that this is so.

Shape suffixes: B batch, T tokens, H query heads, Hk key heads, D head dimension.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers.masking_utils import causal_mask_function

from focus.masks import is_sliding

PROBE = "focus_probe"
PROBE_TOKENS = 4
LAYER_TYPES = {"full_attention", "sliding_attention"}
# Tensors that transformers hands to every attention function and that change no number there.
PLAIN_TENSORS = {"position_ids", "cache_position", "position_embeddings"}


@dataclass(frozen=True)
class AttentionLayer:
    """One self-attention module: its index, sizes, and whether it is a local layer that stays
    as it is (a sliding-window layer in a model that interleaves local and global ones)."""

    index: int
    module: nn.Module
    hidden_size: int
    query_heads: int
    key_heads: int
    local: bool


def attention_layers(model: PreTrainedModel) -> list[AttentionLayer]:
    """The self-attention layers, in order, of a model that Focus can attach to; others are refused.
    Of a multimodal model, its language model's."""
    config = model.config.get_text_config(decoder=True)
    _refuse_by_config(model, config)
    every = model.get_decoder().modules()
    modules = [each for each in every if getattr(each, "layer_idx", None) is not None]
    found = [module for module in modules if _hands_over(module)]
    _refuse_by_structure(model, config, modules, found)
    types = getattr(config, "layer_types", None) or []
    interleaved = len(set(types)) > 1
    layers = [
        _layer(module, config, interleaved and types[_index(module)] == "sliding_attention")
        for module in found
    ]
    return sorted(layers, key=lambda layer: layer.index)


def without_weights(model: nn.Module) -> bool:
    """Whether weights are on the meta device, and accelerate does not bring them when they are
    needed."""
    offloaded = any(hasattr(module, "_hf_hook") for module in model.modules())
    return not offloaded and any(p.is_meta for p in model.parameters())


def _index(module: nn.Module) -> int:
    return int(module.layer_idx)  # type: ignore[arg-type]


def _hands_over(module: nn.Module) -> bool:
    """Whether the module's code asks for the attention interface and takes any keyword."""
    forward = inspect.unwrap(type(module).forward)
    code = getattr(forward, "__code__", None)
    if code is None or "get_interface" not in code.co_names:
        return False
    kinds = {parameter.kind for parameter in inspect.signature(forward).parameters.values()}
    return inspect.Parameter.VAR_KEYWORD in kinds


def _unsupported(model: nn.Module, reason: str) -> ValueError:
    name = getattr(getattr(model, "config", None), "model_type", None)
    return ValueError(
        f"model: {type(model).__name__} (model_type {name!r}) is not supported: {reason}; "
        "Focus needs a decoder-only causal model whose every layer has softmax self-attention"
    )


def _refuse_by_config(model: PreTrainedModel, config: Any) -> None:
    upcast = getattr(config, "reorder_and_upcast_attn", False)
    alibi = getattr(config, "alibi", False) or config.model_type in ("bloom", "mpt")
    for refused, reason in (
        (getattr(model.config, "is_encoder_decoder", False), "it is an encoder-decoder"),
        (getattr(config, "add_cross_attention", False),
         "it has cross-attention (config.add_cross_attention), whose keys are of another sequence; "
         "load it without"),
        (getattr(config, "is_causal", True) is False,
         "it is bidirectional (config.is_causal = False)"),
        (upcast and config._attn_implementation == "eager",
         "it computes attention in float32 under eager alone (config.reorder_and_upcast_attn); "
         "model.set_attn_implementation('sdpa') first"),
        (alibi, "its positions are ALiBi biases on the logits"),
        (getattr(config, "kv_lora_rank", None),
         "it has multi-head latent attention (MLA), whose keys share one compressed part"),
    ):  # fmt: skip
        if refused:
            raise _unsupported(model, reason)


def _refuse_by_structure(model: PreTrainedModel, config: Any, modules: list[nn.Module],
                         found: list[nn.Module]) -> None:  # fmt: skip
    if any(getattr(module, "is_cross_attention", False) for module in modules):
        raise _unsupported(model, "it has cross-attention, whose keys are of another sequence")
    wanted, indices = set(range(config.num_hidden_layers)), [_index(module) for module in found]
    beyond = sorted(set(indices) - wanted)[:4]
    if beyond:
        raise _unsupported(model, f"it has attention in layers {beyond}, and by its config "
                                  f"{len(wanted)} layers")  # fmt: skip
    if set(indices) != wanted:
        bare = {type(m).__name__ for m in modules if _index(m) in wanted - set(indices)}
        raise _unsupported(
            model,
            f"layers {sorted(wanted - set(indices))[:4]} ({', '.join(sorted(bare)) or 'no module'})"
            " do not hand query, key and value to transformers' attention interface (state-space, "
            "linear or recurrent layers, or attention of their own)",
        )
    if len(indices) != len(wanted):
        raise _unsupported(model, "it has several attention modules in one layer")
    if not all(getattr(module, "is_causal", False) for module in found):
        raise _unsupported(model, "its attention is not causal (an encoder, or bidirectional)")
    if any(isinstance(getattr(module, "sinks", None), Tensor) for module in found):
        raise _unsupported(model, "its softmax has a further learned logit (attention sinks)")
    odd = set(getattr(config, "layer_types", None) or []) - LAYER_TYPES
    if odd:
        raise _unsupported(model, f"it has layers of type {', '.join(sorted(odd))}")


def _layer(module: nn.Module, config: Any, local: bool) -> AttentionLayer:
    query_heads = _heads(module, "q_proj", ("num_heads", "num_attention_heads"))
    query_heads = query_heads or config.num_attention_heads
    key_heads = _heads(module, "k_proj", ("num_key_value_heads",))
    key_heads = key_heads or getattr(config, "num_key_value_heads", None) or query_heads
    return AttentionLayer(_index(module), module, config.hidden_size, query_heads, key_heads, local)


def _heads(module: nn.Module, projection: str, names: tuple[str, ...]) -> int | None:
    """Heads of this very layer, which may differ from the config's: by projection, or by name."""
    width = getattr(getattr(module, projection, None), "out_features", None)
    size = getattr(module, "head_dim", None)
    if isinstance(width, int) and isinstance(size, int):
        return width // size
    found = (getattr(module, name, None) for name in names)
    return next((value for value in found if isinstance(value, int)), None)


def probe(model: PreTrainedModel, layers: list[AttentionLayer]) -> None:
    """Runs a few tokens through the model and checks what its attention modules hand over.

    Each of its :func:`attention_layers` must call the interface once, with query (B, H, T, D) and
    key and value (B, Hk, T, D) of the head counts found, and pass on a keyword that it knows
    nothing of; others are refused. The model and the random state are left as they were; one on the
    meta device is not run.
    """
    if without_weights(model):
        return
    token = object()
    calls: list[SimpleNamespace] = []
    with _recording(model, calls):
        _run(model, token)
    for layer in layers:
        reason = _objection(layer, [call for call in calls if call.module is layer.module], token)
        if reason:
            raise _unsupported(model, f"{type(layer.module).__name__} {layer.index} {reason}")


@contextmanager
def _recording(model: PreTrainedModel, calls: list[SimpleNamespace]) -> Iterator[None]:
    def record(module: nn.Module, query: Tensor, key: Tensor, value: Tensor,
               attention_mask: Any = None, *args: Any, **keywords: Any,
               ) -> tuple[Tensor, None]:  # fmt: skip
        calls.append(SimpleNamespace(module=module, query=query.shape, key=key.shape,
                                     value=value.shape, sliding=attention_mask is not None,
                                     keywords=keywords))  # fmt: skip
        batch, heads, tokens, _ = query.shape
        return value.new_zeros(batch, tokens, heads, value.shape[-1]), None

    configs: dict[int, Any] = {
        id(module.config): module.config
        for module in model.get_decoder().modules()
        if hasattr(module, "config")
    }
    former = [(config, config._attn_implementation) for config in configs.values()]
    name = f"{PROBE}_{id(calls)}"  # of its own, for threads that probe models at once
    AttentionInterface.register(name, record)
    AttentionMaskInterface.register(name, _mask)
    try:
        for config, _ in former:
            config._attn_implementation_internal = name
        yield
    finally:
        for config, implementation in former:
            config._attn_implementation_internal = implementation
        AttentionInterface._global_mapping.pop(name, None)
        AttentionMaskInterface._global_mapping.pop(name, None)


def _mask(*args: Any, mask_function: Callable[..., Any] = causal_mask_function,
          **kwargs: Any) -> Tensor | None:  # fmt: skip
    """A mask for layers with a sliding window alone, so that they are known by it."""
    return torch.ones(1, 1, 1, 1, dtype=torch.bool) if is_sliding(mask_function) else None


@torch.no_grad()
def _run(model: PreTrainedModel, token: object) -> None:
    weight: Any = model.get_input_embeddings().weight
    device = torch.device("cpu") if weight.is_meta else weight.device
    ids = torch.zeros(1, PROBE_TOKENS, dtype=torch.long, device=device)
    cuda = [device] if device.type == "cuda" else []
    # Dropout of a model in training mode must not move the caller's random state.
    with torch.random.fork_rng(devices=cuda), _not_packed(model):
        try:
            model.get_decoder()(input_ids=ids, use_cache=False, **{PROBE: token})
        except TypeError as error:
            raise _unsupported(model, f"its forward takes no further keyword ({error})") from error


@contextmanager
def _not_packed(model: PreTrainedModel) -> Iterator[None]:
    """On a CPU bitsandbytes packs 4-bit weights for inference in the first pass of a module in
    evaluation mode, and no gradient flows through them from then on."""
    packable = [module for module in model.modules() if not module.training
                and hasattr(getattr(module, "weight", None), "quant_state")]  # fmt: skip
    for module in packable:
        module.training = True
    try:
        yield
    finally:
        for module in packable:
            module.training = False


def _objection(layer: AttentionLayer, calls: list[SimpleNamespace], token: object) -> str | None:
    if len(calls) != 1:
        return f"called the attention interface {len(calls)} times in one forward pass"
    call = calls[0]
    width = call.query[-1]
    if call.query != (1, layer.query_heads, PROBE_TOKENS, width):
        return f"hands over a query of {tuple(call.query)}, not of {layer.query_heads} heads"
    for name, shape in (("key", call.key), ("value", call.value)):
        if shape != (1, layer.key_heads, PROBE_TOKENS, width):
            return f"hands over a {name} of {tuple(shape)}, not {layer.key_heads} heads of {width}"
    if call.sliding and not layer.local and call.keywords.get("sliding_window") is None:
        return "has a mask of its own (a sliding window, say) and hands over no size"
    if call.keywords.get(PROBE) is not token:
        return "does not pass further keywords on to the attention function"
    tensors = {name for name, value in call.keywords.items() if isinstance(value, Tensor)}
    if tensors - PLAIN_TENSORS:
        return f"hands over further tensors: {', '.join(sorted(tensors - PLAIN_TENSORS))}"
    return None
