"""Does a later token change an earlier one's group? (audit point 5)

Two windows share their first half; the second half of one is another document's. Whatever moves in
the first half was moved by tokens to come.

Shapes: T tokens.
"""

from __future__ import annotations

import torch
from torch import Tensor

import focus
from experiments.methods.focus import balance_statistics
from experiments.readings.subject import Condition, Rows, Subject
from experiments.settings import Budget, Leak

AXES = ("texts", "balances")


def rows(subject: Subject, reading: Leak, name: str, balance: str) -> Rows:
    """A row a document: share of the first half's assignments that changed, largest change of a
    logit there, and how evenly groups are filled."""
    how, documents = Condition("hard", subject.budgets[0]), subject.documents(name)
    half, found = reading.context // 2, []
    for place, (which, windows) in enumerate(documents):
        other = documents[(place + 1) % len(documents)][1]
        changed = torch.cat([windows[:1, :half], other[:1, half:]], -1)
        own = compare(subject, balance, how.budget, windows[:1], changed)
        found.append(subject.row(how, **which, **own) | {"balance": balance})
    return found


@torch.no_grad()
def compare(subject: Subject, balance: str, budget: Budget | None, one: Tensor,
            other: Tensor) -> dict[str, float]:  # fmt: skip
    """What differs in the first half of two windows (1, T)."""
    half, seen, model = one.shape[1] // 2, [], subject.model
    mask = {**subject.method.mask(budget), "balance": balance}
    with focus.mode(model, "hard", **mask):
        for window in (one, other):
            logits = model(window.to(model.device), use_cache=False).logits[:, :half].float()
            seen.append((logits, list(focus.memberships(model).values())))
    (logits, groups), (other_logits, other_groups) = seen
    changed = [differs(a, b, half) for a, b in zip(groups, other_groups, strict=True)]
    # The keys' groups are what balances even out, and what a query reads.
    filled = [balance_statistics(each.query if each.key is None else each.key) for each in groups]
    means = {key: sum(each[key] for each in filled) / len(filled)
             for key in ("largest_group", "one_plus_cv2")}  # fmt: skip
    return {"changed": sum(changed) / len(changed),
            "max_logit_change": float((logits - other_logits).abs().max()), **means}  # fmt: skip


def differs(one: focus.Memberships, other: focus.Memberships, half: int) -> float:
    """Share of first-half tokens whose groups, as a query or as a key, are not the same."""
    sides = [(a, b) for a, b in zip(one, other, strict=True) if a is not None and b is not None]
    changed = [(a[..., :half, :] != b[..., :half, :]).any(-1) for a, b in sides]
    return sum(float(each.float().mean()) for each in changed) / len(changed)
