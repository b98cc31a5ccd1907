"""``focus.mode``: how a model runs, for as long as a ``with`` lasts.

Shape suffixes: B batch, T tokens, E model dimension, H query heads, Hk key heads, D head dimension.
"""

from __future__ import annotations

import threading
import warnings
from types import TracebackType
from typing import Any, Literal, get_args

from torch import nn

from focus.attention.api import BACKENDS
from focus.call import Mode, Tap
from focus.state import attached, modes

Name = Literal["soft", "hard", "full"]
MODES: tuple[str, ...] = get_args(Name)
FIXED = ("num_groups", "routing_dim", "routers", "sinkhorn_iterations", "heavy_hitters",
         "allocated")  # fmt: skip


class mode:  # noqa: N801 - reads as a verb: `with focus.mode(model, "soft"):`
    """As a context manager, has the model run in a mode; nothing is set on the model itself.

    ``soft``: the training gate, all pairs. ``hard``: the top-k mask, which is what holds outside of
    any ``with``. ``full``: the pretrained model, bit for bit.

    The mode holds for the thread that entered it. A thread started inside does not inherit it and
    runs in hard mode, of which it warns: give it the context
    (``Thread(target=contextvars.copy_context().run, args=(model.generate, ...))``).

    A mode within another takes nothing from it: what it does not name is the model's own, so that
    an evaluation in a training step reads the mask that will be used.

    Args:
        model: an attached model.
        name: ``soft``, ``hard`` or ``full``.
        backend: of ``focus.focus_attention`` in hard mode.
        tap: called with the index, hidden states (B, T, E), queries (B, H, T, D) and keys
            (B, Hk, T, D) of each routed layer, but not in full mode; the model's logits are their
            product over sqrt(D).
        changes: fields of the config in place of its own (``top_k``, ``probe``, ``window``,
            ``sinks``, ``gate``, ``balance``, ``temperature``, ``ngram``, ``ngram_keys``), so that
            one set of routers can be read several ways. In soft mode ``top_k`` and ``probe`` are of
            the hard mask in ``straight_through`` alone: how the gate counts keys and probes is the
            attached config's.

    Raises:
        ValueError: unknown names, or what the routers cannot do (another number of groups, say).
    """

    unused = False  # until it is ready to be used

    def __init__(self, model: nn.Module, name: Name, *, backend: str | None = None,
                 tap: Tap | None = None, **changes: Any) -> None:  # fmt: skip
        self.model, self.state = model, attached(model)
        if name not in MODES:
            raise ValueError(f"mode: must be one of {', '.join(MODES)}, got {name!r}")
        if backend is not None and backend not in BACKENDS:
            raise ValueError(f"backend: must be one of {', '.join(BACKENDS)}, got {backend!r}")
        for each in changes:
            if each in FIXED:
                raise ValueError(f"{each}: belongs to the routers and cannot be changed by a mode")
        changes = {field: value for field, value in changes.items() if value is not None}
        self.state.config.replace(**changes)  # refuses what is no setting
        self.own = Mode(name, backend or "auto", tap, changes)
        self.unused = True

    def __enter__(self) -> nn.Module:
        self.unused = False
        now, key = modes.get({}), id(self.state)
        modes.set({**now, key: (*now.get(key, ()), self.own)})
        self.state.threads.append((self, threading.get_ident()))
        return self.model

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:  # fmt: skip
        # Generators may leave in any order, and in another context than they entered in.
        now, key = dict(modes.get({})), id(self.state)
        stack = list(now.pop(key, ()))
        last = next((i for i in reversed(range(len(stack))) if stack[i] is self.own), None)
        if last is not None:
            del stack[last]
        modes.set({**now, key: tuple(stack)} if stack else now)
        here = (self, threading.get_ident())
        mine = [each for each in self.state.threads if each[0] is self]
        if mine:
            self.state.threads.remove(here if here in mine else mine[0])

    def __del__(self) -> None:
        if self.unused:
            warnings.warn("focus.mode: has no effect by itself; write `with focus.mode(...):`",
                          stacklevel=2)  # fmt: skip
