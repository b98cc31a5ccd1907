"""Small models of random weights, one an attention type, with a tokenizer of their own.

A row of sources.yaml of kind ``made`` names an architecture, a width and a depth; the regime
``scratch`` then trains it. The tokenizer, byte-level BPE, is trained on the training side of a
corpus, so that nothing in it knows a held-out document.
"""

from __future__ import annotations

import gzip
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from tokenizers import Tokenizer, decoders, pre_tokenizers, trainers
from tokenizers import models as token_models
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    PretrainedConfig,
    PreTrainedTokenizerFast,
)

from experiments.sources.packages import SourceError

if TYPE_CHECKING:
    from experiments.sources.catalogue import Source

END = "<|endoftext|>"
VOCABULARY = 4096
POSITIONS = 2048
HEAD = 32  # dimensions of a head
SHARED = 3  # query heads of a key head, where they are grouped
# Fields of a config that others do not have, or not so.
ARCHITECTURES = {
    "gpt2": {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}, "llama": {}, "qwen2": {},
    "olmo2": {}, "gemma2": {"head_dim": HEAD, "query_pre_attn_scalar": HEAD, "sliding_window": 64},
}  # fmt: skip


def build(source: Source, folder: Path, corpus: Path) -> None:
    """Writes config, random weights and tokenizer of a made source.

    Args:
        folder: where to.
        corpus: folder of the fetched source that the tokenizer is trained on.

    Raises:
        SourceError: the corpus has no training side.
    """
    trained_tokenizer(corpus).save_pretrained(folder)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        config = config_of(source.architecture, source.width, source.layers)
        AutoModelForCausalLM.from_config(config).save_pretrained(folder)


def config_of(architecture: str, width: int, layers: int) -> PretrainedConfig:
    """The config of a small model.

    Args:
        width: dimensions of a hidden state, a multiple of 96; ``layers``: how many.

    Raises:
        ValueError: an architecture that is not among :data:`ARCHITECTURES`, or another width.
    """
    if architecture not in ARCHITECTURES:
        known = ", ".join(ARCHITECTURES)
        raise ValueError(f"architecture: must be one of {known}, got {architecture!r}")
    heads = width // HEAD
    if width % (HEAD * SHARED) or not width:
        raise ValueError(f"width: must be a multiple of {HEAD * SHARED}, got {width}")
    common = {
        "vocab_size": VOCABULARY, "bos_token_id": 0, "eos_token_id": 0, "pad_token_id": None,
        "hidden_size": width, "num_hidden_layers": layers, "num_attention_heads": heads,
        "max_position_embeddings": POSITIONS, "tie_word_embeddings": True,
    }  # fmt: skip
    if architecture != "gpt2":
        common["intermediate_size"] = 8 * width // 3
    if architecture not in ("gpt2", "olmo2"):  # which have a key head for every head
        common["num_key_value_heads"] = heads // SHARED
    return AutoConfig.for_model(architecture, **common, **ARCHITECTURES[architecture])


def trained_tokenizer(corpus: Path) -> PreTrainedTokenizerFast:
    """Byte-level BPE of :data:`VOCABULARY` tokens, number 0 the end of a text, from the files of a
    corpus that have ``train`` in their path. Loaded by AutoTokenizer, Qwen2's splits numbers into
    digits, as that architecture's does; it reads the same text.

    Raises:
        SourceError: there are none.
    """
    inner = Tokenizer(token_models.BPE())
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY, special_tokens=[END], show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )  # fmt: skip
    inner.train_from_iterator(_lines(corpus), trainer)
    return PreTrainedTokenizerFast(tokenizer_object=inner, eos_token=END, bos_token=END,
                                   model_max_length=POSITIONS)  # fmt: skip


def _lines(corpus: Path) -> Iterator[str]:
    files = [path for path in sorted(corpus.rglob("*"))
             if path.is_file() and "train" in str(path.relative_to(corpus))]  # fmt: skip
    if not files:
        raise SourceError(f"{corpus}: no file of it is called train: a tokenizer must not be "
                          "trained on held-out documents")  # fmt: skip
    for path in files:
        opened = gzip.open if path.suffix == ".gz" else open
        with opened(path, "rt", encoding="utf-8") as file:
            yield from file
