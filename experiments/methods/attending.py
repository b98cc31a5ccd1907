"""Another attention function in an attached model's layers, for as long as a reference needs it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

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
