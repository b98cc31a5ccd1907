"""Another attention function in an attached model's layers, for as long as a reference needs it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor
from transformers import AttentionMaskInterface, PreTrainedModel
from transformers.masking_utils import sdpa_mask
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

import focus
from focus.state import attached

Attention = Callable[..., tuple[Tensor, None]]


@contextmanager
def attending(model: PreTrainedModel, name: str,
              function: Attention) -> Iterator[PreTrainedModel]:  # fmt: skip
    """The attached model in full mode, in which another attention function stands for its own.

    Args:
        model: attached; it is as it was afterwards, whatever happens within.
        name: under which transformers knows the function meanwhile.
        function: takes and gives what transformers' own attention functions do: query (B, H, T, D),
            key and value (B, Hk, T, D), out (B, T, H, D).

    Raises:
        ValueError: Focus is not attached.
    """
    with focus.mode(model, "full"):
        state = attached(model)
        former = state.implementation
        ALL_ATTENTION_FUNCTIONS[name] = function
        AttentionMaskInterface.register(name, sdpa_mask)
        try:
            state.implementation = name
            yield model
        finally:
            state.implementation = former
            # What the function holds would otherwise live as long as the process.
            del ALL_ATTENTION_FUNCTIONS[name]


def plain_scale(what: str, query: Tensor, key: Tensor, attention_mask: Tensor | None,
                scaling: float | None, rest: dict[str, Any]) -> float:  # fmt: skip
    """The factor of the logits in an attention call that a reference can take.

    Args:
        what: the reference or setting, for the error.
        query: (B, H, T, D); key: (B, Hk, T, D).
        attention_mask, scaling, rest: what transformers gives an attention function beside them.

    Raises:
        ValueError: the call has padding, a soft-cap, or a sliding window shorter than the text.
    """
    limited = rest.get("softcap") or (rest.get("sliding_window") or float("inf")) < key.shape[2]
    if attention_mask is not None or limited:
        raise ValueError(
            f"{what}: it forms every pair, so it takes whole texts without padding, and models "
            "without sliding windows and soft-cap"
        )
    return query.shape[-1] ** -0.5 if scaling is None else scaling
