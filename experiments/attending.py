"""Another attention function in an attached model's layers, for as long as a reference needs it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel

import focus
from focus.masks import focus_mask

Attention = Callable[..., tuple[Tensor, None]]


@contextmanager
def attending(model: PreTrainedModel, name: str, function: Attention,
              mode: str = "full") -> Iterator[PreTrainedModel]:  # fmt: skip
    """The attached model in ``mode``, whose layers call ``function`` as transformers' attention,
    registered under ``name``."""
    AttentionInterface.register(name, function)
    AttentionMaskInterface.register(name, focus_mask)
    with focus.mode(model, mode):
        former = model.config._attn_implementation
        model.set_attn_implementation(name)
        try:
            yield model
        finally:
            model.set_attn_implementation(former)


def plain_scale(query: Tensor, key: Tensor, attention_mask: Tensor | None, scaling: float | None,
                rest: dict[str, Any]) -> float:  # fmt: skip
    """The factor of the logits in a call of whole texts without padding, a sliding window that
    cuts, or a soft-cap.

    Raises:
        ValueError: it is another call.
    """
    limited = rest.get("softcap") or (rest.get("sliding_window") or float("inf")) < key.shape[2]
    if attention_mask is not None or limited:
        raise ValueError(
            "references that form every pair take whole texts without padding, and models without "
            "sliding windows and soft-cap"
        )
    return query.shape[-1] ** -0.5 if scaling is None else scaling
