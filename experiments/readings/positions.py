"""Where in a text a mask costs, and whether its groups stay even there.

Shapes: B batch, Hr routers a layer, T tokens, K groups.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

import focus
from experiments.readings.perplexity import token_nll
from experiments.readings.subject import Condition, Rows, Subject
from experiments.settings import Positions
from focus.state import attached

AXES = ("texts", "conditions")


def rows(subject: Subject, reading: Positions, name: str, how: Condition) -> Rows:
    """A row a document and stretch of ``width`` positions: the loss of its tokens, and of
    routed ones the share of its largest group of keys, and how far its groups are from the first
    stretch's."""
    found = []
    with subject.entered(how):
        for which, windows in subject.documents(name):
            found += [subject.row(how, **which, **own)
                      for own in stretches(subject, reading, windows, how)]  # fmt: skip
    return found


@torch.no_grad()
def stretches(subject: Subject, reading: Positions, ids: Tensor,
              how: Condition) -> Iterator[dict[str, Any]]:  # fmt: skip
    """What one window (1, T) says of each stretch of its positions."""
    ids = ids.to(subject.model.device)
    losses = token_nll(subject.model(ids, use_cache=False).logits, ids, reading.score_from).double()
    groups = held(subject, reading.width) if how.name == "hard" else None
    for number, start in enumerate(range(0, reading.context, reading.width)):
        first, end = (max(at - reading.score_from, 0) for at in (start, start + reading.width))
        own = losses[first:end]
        even = {} if groups is None else evenness(groups, number)
        yield {"position": start, "nll": float(own.sum()), "tokens": own.numel(), **even}


def held(subject: Subject, width: int) -> Tensor | None:
    """Shares of the keys that each group holds, by router and stretch (all routers, stretches, K),
    of the last forward pass; None where the method has no groups. Heavy hitters are not a group."""
    if subject.cell.method.name != "focus":
        return None
    count = attached(subject.model).config.num_groups
    found = []
    for each in focus.memberships(subject.model).values():
        keys = each.of_keys[0, ..., :count].float()
        found.append(torch.stack([part.mean(-2) for part in keys.split(width, -2)], -2))
    return torch.cat(found)


def evenness(shares: Tensor, number: int) -> dict[str, float]:
    """Of one stretch, mean over routers: percent of the keys in its largest group, and percent of
    them that would have to move to give the first stretch's shares (total variation)."""
    own, first = shares[:, number], shares[:, 0]
    return {"largest": 100 * float(own.amax(-1).mean()),
            "moved": 50 * float((own - first).abs().sum(-1).mean())}  # fmt: skip
