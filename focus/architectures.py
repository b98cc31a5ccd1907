"""Which transformers models Focus attaches to, and where their attention layers are.

The paper's five attention types: MHA (GPT-2), GQA (Llama, Mistral with its sliding window),
GQA with bias (Qwen2), MHA with QK-norm (OLMo-2), interleaved local/global with a logit soft-cap
(Gemma-2). Anything else is refused by name.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn
from transformers import PreTrainedModel

# model_type -> class name of the self-attention module. All call transformers' attention
# interface with un-repeated key heads, which is what the integration relies on.
ATTENTION_CLASSES = {
    "gpt2": "GPT2Attention",
    "llama": "LlamaAttention",
    "mistral": "MistralAttention",
    "qwen2": "Qwen2Attention",
    "olmo2": "Olmo2Attention",
    "gemma2": "Gemma2Attention",
}


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
    """The model's self-attention layers, in order.

    Raises:
        ValueError: the model is not of a supported type.
    """
    config = getattr(model, "config", None)
    model_type = getattr(config, "model_type", None)
    if config is None or model_type not in ATTENTION_CLASSES:
        raise ValueError(
            f"model: {type(model).__name__} (model_type {model_type!r}) is not supported; "
            f"Focus attaches to {', '.join(sorted(ATTENTION_CLASSES))}"
        )
    modules = {
        _index(module): module
        for module in model.modules()
        if type(module).__name__ == ATTENTION_CLASSES[model_type]
        and not getattr(module, "is_cross_attention", False)
    }
    if not modules:
        raise ValueError(
            f"model: no {ATTENTION_CLASSES[model_type]} module found in {type(model).__name__}; "
            "attach before wrapping or replacing attention modules"
        )
    layer_types = getattr(config, "layer_types", None) or []
    interleaved = len(set(layer_types)) > 1
    key_heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    return [
        AttentionLayer(
            index=index,
            module=module,
            hidden_size=config.hidden_size,
            query_heads=config.num_attention_heads,
            key_heads=key_heads,
            local=interleaved and layer_types[index] == "sliding_attention",
        )
        for index, module in sorted(modules.items())
    ]


def _index(module: nn.Module) -> int:
    return int(module.layer_idx)  # type: ignore[arg-type]
