"""What travels with one forward pass: its mode and token ids, down to every attention layer.

A hook (:mod:`focus.hooks`) makes one :class:`Call`, a snapshot that the decoder's own keyword
arguments carry to its attention modules. Nothing about a pass is kept on the model, so that
threads, nested modes, exceptions half-way and the second forward pass of gradient checkpointing
cannot mix two passes up.

Shape suffixes: B batch, T tokens, M new tokens, N further keys.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import cached_property
from types import FrameType
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from focus.config import FocusConfig
from focus.density import PairCounts
from focus.groups import Memberships

KEYWORD = "focus_call"  # of the model's own keyword arguments
CALL = nn.Module._call_impl.__code__
IMPLEMENTATION = "focus"  # the attention implementation's name in transformers

Tap = Callable[[int, Tensor, Tensor, Tensor], None]


@dataclass(frozen=True)
class Mode:
    """How a model runs; changes: fields of the config. See :class:`focus.mode`."""

    name: str = "hard"
    backend: str = "auto"
    tap: Tap | None = None
    changes: dict[str, Any] = field(default_factory=dict)


@dataclass
class LayerRecord:
    """What one layer's call in hard mode leaves behind.

    found: memberships, or what finds them where the call needed none; None: nobody may ask. Pairs
    are counted when somebody asks.
    """

    found: Memberships | Callable[[], Memberships] | None
    count: Callable[[], PairCounts]

    @cached_property
    def memberships(self) -> Memberships | None:
        """Of the call's tokens."""
        return self.found() if callable(self.found) else self.found

    @cached_property
    def pairs(self) -> PairCounts:
        """Pairs of the call."""
        return self.count()


@dataclass
class Record:
    """What a forward pass leaves behind; written by its layers, read when it is over.

    layers: of those that have run in hard mode; learned: whose potentials have taken this batch in
    (a layer that gradient checkpointing runs again must not do so twice); further: the keys found
    word for word (B, M, N), the same in every layer; settled: those of them that count on CPU (see
    :func:`focus.attention.extra.settle`).
    """

    layers: dict[int, LayerRecord] = field(default_factory=dict)
    learned: set[int] = field(default_factory=set)
    further: Tensor | None = None
    settled: Tensor | None = None


class Terms(NamedTuple):
    """What an attention call is asked beside queries, keys and values.

    mask, asked: what the rest was read from; seen: tokens before the new ones, in the cache;
    real: (B, T) bool of all tokens so far, or None; new_real: (B, M) of the new
    ones, or None; own_window: tokens of the model's own sliding window, or None; limit: the same
    where it removes a pair; whole: the window holds every pair, and torch's own attention knows all
    there is to it; autocast: whether it is on.
    """

    mask: Tensor | None
    asked: tuple[Any, ...]
    seen: int
    real: Tensor | None
    new_real: Tensor | None
    own_window: int | None
    limit: int | None
    softcap: float | None
    dropout: float
    whole: bool
    autocast: bool


@dataclass(eq=False)
class Call:
    """One forward pass of the model: its mode, the config with the mode's changes, token ids (B, M)
    or None, and its record."""

    mode: Mode
    config: FocusConfig
    ids: Tensor | None
    implementation: str  # the pretrained model's own
    interleaved: bool  # some layers have a sliding window and stay as they are
    hook: object = None  # what began it
    module: object = None  # at whose forward
    outer: Call | None = None  # the pass within which this one runs
    record: Record = field(default_factory=Record)
    terms: Terms | None = None  # as the last of its layers has read them


# The forward pass that is under way in this thread, for what gets no keyword arguments: the mask
# function, and the cache.
running: ContextVar[Call | None] = ContextVar("focus_running", default=None)


def alive() -> Call | None:
    """The same, without passes that a KeyboardInterrupt has ended, after which torch runs no
    hook."""
    call = running.get()
    while call is not None and not _executing(call.module):
        call = call.outer
    return call


def _executing(module: object) -> bool:
    """Whether a module is being run in this thread: its call is on the stack."""
    if torch.compiler.is_compiling():
        return True
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        code = frame.f_code  # torch.compile's copies keep the name
        a_call = CALL.co_name in code.co_name and code.co_filename == CALL.co_filename
        if a_call and frame.f_locals.get("self") is module:
            return True
        frame = frame.f_back
    return False
