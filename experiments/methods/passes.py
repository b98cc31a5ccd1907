"""What a forward pass is given, and the pairs that it has by the standard window and sinks: the
same for every method, so that shares of distant pairs can be compared.

Shape suffixes: B batch, M new tokens, T tokens so far.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import pad
from transformers import PreTrainedModel

from focus.attention.checks import sink_tokens
from focus.density import PairCounts
from focus.state import transformers_model


@dataclass(frozen=True)
class Pass:
    """One forward pass of a model's decoder.

    Attributes:
        real: (B, T) bool, False for padding.
        new: M, tokens that it was given, the last of the T.
        ids: (B, M), or None where it was given embeddings.
    """

    real: Tensor
    new: int
    ids: Tensor | None

    @property
    def tokens(self) -> int:
        """T."""
        return self.real.shape[1]

    @property
    def past(self) -> int:
        """Tokens in the cache before it."""
        return self.tokens - self.new

    def pairs(self, window: int, sinks: int) -> PairCounts:
        """Causal, near and distant pairs of its queries, for one routing; no distant one kept."""
        batch, tokens = self.real.shape
        is_sink = sink_tokens(self.real, batch, tokens, sinks, self.real.device)
        gone = (self.real & ~is_sink).cumsum(1)
        beyond = pad(gone, (window, 0))[:, :tokens]  # keys that have left each query's window
        query = self.real[:, self.past :]
        causal = int((self.real.cumsum(1)[:, self.past :] * query).sum())
        distant = int((beyond[:, self.past :] * query).sum())
        return PairCounts(causal, causal - distant, distant, 0)

    def keeping(self, kept: int, routings: int, window: int, sinks: int) -> PairCounts:
        """The pairs of so many routings, of which ``kept`` are kept, all near ones among them."""
        one = self.pairs(window, sinks)
        causal, near, distant = (each * routings for each in one[:3])
        return PairCounts(causal, near, distant, kept - near)


@contextmanager
def watched(
    model: PreTrainedModel, before: Callable[[Pass], None] | None = None
) -> Iterator[Callable[[], Pass]]:
    """The call that it gives tells of the last forward pass; RuntimeError where none has run.

    Args:
        before: told of each pass before Focus takes note of how the model is to run.
    """
    last: list[Pass] = []

    def look(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        last[:] = [_given(args, kwargs)]
        if before is not None:
            before(last[0])

    def told() -> Pass:
        if not last:
            raise RuntimeError("no forward pass has run under the method yet")
        return last[0]

    # Of the decoder, since wrappers call the model's forward itself, past its hooks.
    decoder = transformers_model(model).get_decoder()
    with decoder.register_forward_pre_hook(look, prepend=True, with_kwargs=True):
        yield told


def _given(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Pass:
    ids = args[0] if args else kwargs.get("input_ids")
    shown = kwargs["inputs_embeds"] if ids is None else ids
    cache = kwargs.get("cache", kwargs.get("past_key_values"))  # its name until transformers 5.23
    batch, new = shown.shape[:2]
    tokens = new + (0 if cache is None else int(cache.get_seq_length()))
    real = kwargs.get("attention_mask")
    if real is None or real.dim() != 2:
        return Pass(torch.ones(batch, tokens, dtype=torch.bool, device=shown.device), new, ids)
    return Pass(real[:, :tokens].bool(), new, ids)
