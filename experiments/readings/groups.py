"""What groups there are under the training gate: how even, how sure, by layer (paper: Section 5,
Table 9).

Shapes: B batch, S sides, Hr routers a layer, T tokens, K groups.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from experiments.readings.perplexity import entered
from experiments.readings.subject import SOFT, Part, Rows, Subject, every
from experiments.settings import Groups
from focus.balance import balance_statistics
from focus.routing import Router


def parts(subject: Subject, reading: Groups) -> Iterator[Part]:
    """A part a kind of text."""
    return every(rows, subject, reading, reading.texts)


def rows(subject: Subject, reading: Groups, name: str) -> Rows:
    """A row a document and layer; of routers that balance keys alone, the keys'."""
    found = []
    for which, windows in subject.documents(name):
        for layer, logits in enumerate(logits_of(subject, windows)):
            keys = logits[:, -1]
            members = nn.functional.one_hot(keys.argmax(-1), keys.shape[-1]).bool()
            sure = float(keys.softmax(-1).amax(-1).mean())
            own = {"layer": layer, **balance_statistics(members), "confidence": sure}
            found.append(subject.row(SOFT, **which, **own))
    return found


@torch.no_grad()
def logits_of(subject: Subject, windows: Tensor) -> list[Tensor]:
    """Every router's balanced logits (B, S, Hr, T, K) of windows (B, T), a window at a time."""
    with entered(subject, SOFT), seen(subject.model) as logits:
        for window in windows:
            subject.model(window[None].to(subject.model.device), use_cache=False)
    return [torch.cat([each.float() for each in own]) for own in logits.values()]


@contextmanager
def seen(model: nn.Module) -> Iterator[dict[Router, list[Tensor]]]:
    """What every router says while this lasts."""
    found: dict[Router, list[Tensor]] = {}

    def keep(router: Router, args: tuple[Any, ...], output: Tensor) -> None:
        found.setdefault(router, []).append(output)

    routers = [each for each in model.modules() if isinstance(each, Router)]
    hooks = [router.register_forward_hook(keep) for router in routers]
    try:
        yield found
    finally:
        for hook in hooks:
            hook.remove()
