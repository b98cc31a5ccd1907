"""Tiny random models, built in memory: the suite's, and one of each structure that is met."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import transformers as hf
from transformers import PretrainedConfig, PreTrainedModel

from experiments.sources.models import TINY, load

ARCHITECTURES = tuple(sorted(TINY))

# 2 layers of 4 heads of 16 dimensions, 2 key heads where grouped.
_SMALL: dict[str, Any] = {
    "vocab_size": 257,
    "bos_token_id": 256,
    "eos_token_id": 256,
    "pad_token_id": None,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 512,
}
_GROUPED = {**_SMALL, "num_key_value_heads": 2}
_WIDE = {**_GROUPED, "head_dim": 16}
_EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
_GPT2 = {"vocab_size": 257, "n_embd": 64, "n_layer": 2, "n_head": 4, "bos_token_id": 256,
         "eos_token_id": 256}  # fmt: skip
_LLAMA3 = {"rope_type": "llama3", "rope_theta": 5e5, "factor": 8.0, "low_freq_factor": 1.0,
           "high_freq_factor": 4.0, "original_max_position_embeddings": 128}  # fmt: skip
_ENCODER_DECODER = {"vocab_size": 257, "d_model": 64, "encoder_layers": 2, "decoder_layers": 2,
                    "encoder_attention_heads": 4, "decoder_attention_heads": 4}  # fmt: skip
_GEMMA3 = {**_WIDE, "num_hidden_layers": 6, "sliding_window": 32}
_VISION = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1,
           "num_attention_heads": 2, "image_size": 16, "patch_size": 8}  # fmt: skip

_CONFIGS: dict[str, Callable[[], PretrainedConfig]] = {
    "gpt2": lambda: hf.GPT2Config(**_GPT2),
    "llama": lambda: hf.LlamaConfig(**_GROUPED, rope_parameters=dict(_LLAMA3)),
    "mistral": lambda: hf.MistralConfig(**_GROUPED, sliding_window=32),
    "opt": lambda: hf.OPTConfig(vocab_size=257, hidden_size=64, ffn_dim=128, num_hidden_layers=2,
                                num_attention_heads=4, word_embed_proj_dim=64),
    "qwen2": lambda: hf.Qwen2Config(**_GROUPED),
    "olmo2": lambda: hf.Olmo2Config(**_SMALL),
    "gemma2": lambda: hf.Gemma2Config(**_WIDE, sliding_window=32),
    "qwen3": lambda: hf.Qwen3Config(**_WIDE),
    "phi3": lambda: hf.Phi3Config(**_GROUPED),
    # Every fourth layer of SmolLM3 has no rotary positions.
    "smollm3": lambda: hf.SmolLM3Config(**{**_GROUPED, "num_hidden_layers": 4}),
    "gemma3": lambda: hf.Gemma3TextConfig(**_GEMMA3),
    # With images, for which another model builds the masks.
    "gemma3-vision": lambda: hf.Gemma3Config(
        text_config=_GEMMA3, vision_config=_VISION, mm_tokens_per_image=4, image_token_index=253,
        boi_token_index=254, eoi_token_index=255,
    ),
    # The second half of its layers takes keys and values from the first.
    "gemma4": lambda: hf.Gemma4TextConfig(
        **{**_WIDE, "num_hidden_layers": 4}, num_kv_shared_layers=2, sliding_window=32,
        vocab_size_per_layer_input=257,
        layer_types=["sliding_attention", "full_attention"] * 2,
    ),
    # Its attention calls the cache layer_past.
    "gpt_neox": lambda: hf.GPTNeoXConfig(**_SMALL),
    "mixtral": lambda: hf.MixtralConfig(**_GROUPED, num_local_experts=4),
    "qwen2_moe": lambda: hf.Qwen2MoeConfig(
        **_GROUPED, **_EXPERTS, shared_expert_intermediate_size=32
    ),
    "qwen3_moe": lambda: hf.Qwen3MoeConfig(**_WIDE, **_EXPERTS),
    "deepseek_v3": lambda: hf.DeepseekV3Config(
        **_SMALL, num_key_value_heads=4, kv_lora_rank=16, q_lora_rank=16, qk_rope_head_dim=8,
        qk_nope_head_dim=8, v_head_dim=16, n_routed_experts=4, num_experts_per_tok=2,
        moe_intermediate_size=32, n_group=1, topk_group=1,
    ),
    "t5": lambda: hf.T5Config(vocab_size=257, d_model=64, d_kv=16, num_layers=2, num_heads=4),
    "bart": lambda: hf.BartConfig(**_ENCODER_DECODER),
    "mamba": lambda: hf.MambaConfig(
        vocab_size=257, hidden_size=64, num_hidden_layers=2, state_size=8
    ),
    "jamba": lambda: hf.JambaConfig(
        **{**_GROUPED, "num_hidden_layers": 4}, attn_layer_period=2, attn_layer_offset=1,
        num_experts=2,
    ),
    "qwen3_next": lambda: hf.Qwen3NextConfig(
        **_WIDE, **_EXPERTS, shared_expert_intermediate_size=32
    ),
    "falcon-alibi": lambda: hf.FalconConfig(
        vocab_size=257, hidden_size=64, num_hidden_layers=2, num_attention_heads=4, alibi=True
    ),
    "falcon": lambda: hf.FalconConfig(
        vocab_size=257, hidden_size=64, num_hidden_layers=2, num_attention_heads=4, alibi=False
    ),
    "bloom": lambda: hf.BloomConfig(vocab_size=257, hidden_size=64, n_layer=2, n_head=4),
    "gpt_oss": lambda: hf.GptOssConfig(
        **_WIDE, num_local_experts=4, num_experts_per_tok=2, sliding_window=32
    ),
    "bidirectional": lambda: hf.LlamaConfig(**_GROUPED, is_causal=False),
    "gpt2-upcast": lambda: hf.GPT2Config(
        **_GPT2, reorder_and_upcast_attn=True, attn_implementation="eager"
    ),
    "gpt2-cross-attention": lambda: hf.GPT2Config(**_GPT2, add_cross_attention=True),
    "bert": lambda: hf.BertConfig(**_SMALL),
    "phimoe": lambda: hf.PhimoeConfig(**_GROUPED, num_local_experts=4, sliding_window=32),
    "llama4": lambda: hf.Llama4TextConfig(
        **{**_WIDE, "num_hidden_layers": 4}, intermediate_size_mlp=64, num_local_experts=2
    ),
}  # fmt: skip

# A model that is refused, and what its message must say.
UNSUPPORTED = {
    "deepseek_v3": "latent attention",
    "t5": "encoder-decoder",
    "bart": "encoder-decoder",
    "mamba": r"MambaMixer.*state-space",
    "jamba": r"JambaMambaMixer.*state-space",
    "qwen3_next": r"GatedDeltaNet.*linear",
    "falcon-alibi": "ALiBi",
    "falcon": "attention of their own",
    "bloom": "ALiBi",
    "gpt_oss": "learned logit",
    "gpt2-cross-attention": "cross-attention.*load it without",
    "bert": "not causal",
    "bidirectional": "bidirectional",
    "gpt2-upcast": r"set_attn_implementation\('sdpa'\) first",
    "llama4": "chunked_attention",
    "phimoe": "hands over no size",
}
SUPPORTED = tuple(name for name in _CONFIGS if name not in UNSUPPORTED)


def build(name: str) -> PreTrainedModel:
    """A tiny model of a structure, in float32 and evaluation mode, with weights from seed 0."""
    config = _CONFIGS[name]()
    factory = hf.AutoModelForSeq2SeqLM if config.is_encoder_decoder else hf.AutoModelForCausalLM
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return factory.from_config(config).eval()


def tiny(name: str, **changes: object) -> PreTrainedModel:
    """A tiny model in float32 and evaluation mode; ``changes`` replace fields of its config."""
    if not changes:
        return load(name)[0]
    torch.manual_seed(0)
    config = hf.AutoConfig.for_model(**{**TINY[name], **changes})
    return hf.AutoModelForCausalLM.from_config(config).eval()


def token_ids(batch: int, tokens: int, seed: int = 0) -> torch.Tensor:
    """Random token ids (B, T)."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, 256, (batch, tokens), generator=generator)


def texts() -> list[torch.Tensor]:
    """Two that are long enough to calibrate on."""
    return [token_ids(2, 560), token_ids(1, 600)]


@torch.no_grad()
def logits(model: torch.nn.Module, ids: torch.Tensor, **kwargs: object) -> torch.Tensor:
    """Of the whole text at once, without a cache."""
    return model(ids, use_cache=False, **kwargs).logits
