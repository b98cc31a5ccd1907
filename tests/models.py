"""Tiny random models of the paper's five attention types, built in memory."""

from __future__ import annotations

import torch
from transformers import PreTrainedModel

from experiments.models import TINY, load

ARCHITECTURES = tuple(sorted(TINY))


def tiny(name: str, **changes: object) -> PreTrainedModel:
    """A tiny model in float32 and evaluation mode; ``changes`` replace fields of its config."""
    if not changes:
        return load(name)[0]
    kind, values = TINY[name]
    from transformers import AutoModelForCausalLM

    torch.manual_seed(0)
    return AutoModelForCausalLM.from_config(kind(**{**values, **changes})).eval()


def token_ids(batch: int, tokens: int, seed: int = 0) -> torch.Tensor:
    """Random token ids (B, T)."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, 256, (batch, tokens), generator=generator)
