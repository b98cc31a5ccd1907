"""The models of the suite, by name: fetched weights, and tiny ones made from a seed.

`load("smollm2-135m-instruct", "bfloat16")` reads data/sources/<name>/. `load("tiny-llama")` builds
a model of random weights, the same on every machine and without any file, for tests and for the
five attention types: gpt2 (MHA), llama and mistral (GQA; mistral with its sliding window), qwen2
(GQA with bias), olmo2 (MHA with QK-norm), gemma2 (local and global layers, soft-cap).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, pre_tokenizers
from tokenizers import models as token_models
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    PretrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    PreTrainedTokenizerFast,
)

from experiments.sources import catalogue

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
END = "<|endoftext|>"
ROOM = 0.8  # of a GPU's free memory, for weights; the rest is for what passes make

# 2 layers of 4 heads (2 key heads where grouped) of 16 dimensions over 256 bytes and one end mark.
_BYTES: dict[str, Any] = {"vocab_size": 257, "bos_token_id": 256, "eos_token_id": 256}
_SMALL: dict[str, Any] = {
    **_BYTES, "pad_token_id": None, "hidden_size": 64, "intermediate_size": 128,
    "num_hidden_layers": 2, "num_attention_heads": 4, "max_position_embeddings": 4096,
}  # fmt: skip
_GROUPED = {**_SMALL, "num_key_value_heads": 2}
TINY: dict[str, dict[str, Any]] = {
    "tiny-gpt2": {"model_type": "gpt2", **_BYTES, "n_embd": 64, "n_layer": 2, "n_head": 4,
                  "n_positions": 4096},
    "tiny-llama": {"model_type": "llama", **_GROUPED},
    "tiny-mistral": {"model_type": "mistral", **_GROUPED, "sliding_window": 32},
    "tiny-qwen2": {"model_type": "qwen2", **_GROUPED},
    "tiny-olmo2": {"model_type": "olmo2", **_SMALL},
    "tiny-gemma2": {"model_type": "gemma2", **_GROUPED, "head_dim": 16, "sliding_window": 32},
}  # fmt: skip


def load(
    name: str, dtype: str | torch.dtype = "float32", device: str | torch.device | None = None
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """A model in evaluation mode, and its tokenizer.

    Args:
        name: a name of :data:`TINY`, or a source with role `model` that `fetch` brought.
        dtype: number format of the weights: auto, float32, bfloat16 or float16.
        device: of the weights; None: the GPU, where there is one, or all GPUs of the machine,
            where one does not hold the model (:func:`spreads`): each then has some of the layers,
            and inputs go to that of the embedding, ``model.device``.

    Raises:
        ValueError: an unknown name or format, or files that are not there yet.
    """
    wanted = resolve_dtype(dtype)
    place = device or torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if name in TINY:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            model = AutoModelForCausalLM.from_config(config(name))
        return model.eval().to(place, wanted), byte_tokenizer()
    folder, tokenizer = folder_of(name), load_tokenizer(name)
    how: dict[str, Any] = {"dtype": wanted, "local_files_only": True}
    if device is None and spreads(name, wanted):
        model = AutoModelForCausalLM.from_pretrained(folder, device_map="auto", **how)
        return model.eval(), tokenizer
    return AutoModelForCausalLM.from_pretrained(folder, **how).eval().to(place), tokenizer


def config(name: str) -> PretrainedConfig:
    """The config of a model, without its weights; see :func:`load`."""
    if name in TINY:
        return AutoConfig.for_model(**TINY[name])
    return AutoConfig.from_pretrained(folder_of(name), local_files_only=True)


def spreads(name: str, dtype: torch.dtype) -> bool:
    """Whether a model is read on several GPUs: one has no room for its weights, there are others,
    and none is another process's."""
    count = torch.cuda.device_count()
    if count < 2 or (torch.distributed.is_available() and torch.distributed.is_initialized()):
        return False
    with torch.device("meta"):
        numbers = AutoModelForCausalLM.from_config(config(name)).num_parameters()
    free, _ = torch.cuda.mem_get_info()
    return numbers * dtype.itemsize > ROOM * free


def load_tokenizer(name: str) -> PreTrainedTokenizerBase:
    """The tokenizer of a model, without its weights; see :func:`load`."""
    if name in TINY:
        return byte_tokenizer()
    return AutoTokenizer.from_pretrained(folder_of(name), local_files_only=True)


def byte_tokenizer() -> PreTrainedTokenizerFast:
    """One token for each byte, and token 256 for the end of a text."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {symbol: index for index, symbol in enumerate(alphabet)}
    inner = Tokenizer(token_models.BPE(vocab=vocabulary, merges=[]))
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    inner.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=inner, eos_token=END, bos_token=END)


def resolve_dtype(dtype: str | torch.dtype) -> torch.dtype:
    """A number format by name; ``auto`` is bfloat16 where the hardware computes in it, on a GPU or
    by instructions of the processor, and float32 where it would be emulated, which takes longer.

    Raises:
        ValueError: an unknown name.
    """
    if isinstance(dtype, torch.dtype):
        return dtype
    if dtype == "auto":
        return torch.bfloat16 if _native_bfloat16() else torch.float32
    if dtype not in DTYPES:
        raise ValueError(f"dtype: must be one of auto, {', '.join(DTYPES)}, got {dtype!r}")
    return DTYPES[dtype]


def _native_bfloat16() -> bool:
    if torch.cuda.is_available():
        return True
    # The question has no public name in torch 2.11.
    checks = ("_is_avx512_bf16_supported", "_is_amx_tile_supported")
    return any(bool(getattr(torch.cpu, name, bool)()) for name in checks)


def folder_of(name: str) -> Path:
    """The folder of a fetched model.

    Raises:
        ValueError: an unknown name, or files that are not there yet.
    """
    folder = catalogue.ROOT / name
    if (folder / "config.json").is_file():
        return folder
    listed = catalogue.sources()
    known = [*(n for n, source in listed.items() if source.role == "model"), *TINY]
    if name not in known and catalogue.override(name) is None:
        raise ValueError(f"model {name}: unknown; known are {', '.join(known)}")
    raise ValueError(f"model {name}: {folder} has no config.json; run "
                     f"`python -m experiments.stages.fetch {name}` first")  # fmt: skip
