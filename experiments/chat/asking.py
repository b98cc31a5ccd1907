"""Prompts in a model's own chat format, and the untrained model's answers to them."""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from experiments.sources import models


def prompt(tokenizer: PreTrainedTokenizerBase, question: str, text_T: Tensor) -> Tensor:
    """Token ids (1, P) of a message that ends with a question, after a text where there is one.

    Raises:
        ValueError: the model has no chat format.
    """
    if not tokenizer.chat_template:
        raise ValueError("readings: kind chat asks instruct models alone: this one's tokenizer has "
                         "no chat template")  # fmt: skip
    before = f"{tokenizer.decode(text_T)}\n\n" if len(text_T) else ""
    message = [{"role": "user", "content": before + question}]
    return tokenizer.apply_chat_template(message, add_generation_prompt=True, return_dict=True,
                                         return_tensors="pt").input_ids  # fmt: skip


@lru_cache(maxsize=1)
def untrained(name: str, dtype: str) -> PreTrainedModel:
    """The model as it was fetched, full attention."""
    return models.load(name, dtype)[0]


@lru_cache(maxsize=256)
@torch.no_grad()
def answered(name: str, dtype: str, prompt: tuple[int, ...], count: int) -> Tensor:
    """Prompt and greedy answer (1, P + at most ``count``) of the untrained model; many cells are
    asked the same."""
    model = untrained(name, dtype)
    found: Tensor = model.generate(
        torch.tensor([prompt], device=model.device), max_new_tokens=count, do_sample=False,
        pad_token_id=model.config.eos_token_id,
    )  # fmt: skip
    return found
