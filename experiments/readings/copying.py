"""Whether a mask finds a passage again that the window has held before.

A token of the second reading is all but certain to whoever finds the first one; perplexity of
ordinary text hardly asks for it. Beside the mask stand full attention, which copies (``full``), and
the same passage read for the first time (``new``).

Shapes: N distances, T tokens.
"""

from __future__ import annotations

import torch
from torch import Tensor

from experiments.readings.perplexity import score
from experiments.readings.subject import Condition, Rows, Subject
from experiments.settings import Copying

AXES = ("texts", "conditions")


def conditions(subject: Subject, reading: Copying) -> list[Condition]:
    """Full attention, with the passage seen before and new; and the masks."""
    masked = subject.budgets if subject.cell.method.name != "full" else ()
    return [Condition("full"), Condition("new"), *(Condition("hard", each) for each in masked)]


def rows(subject: Subject, reading: Copying, name: str, how: Condition) -> Rows:
    """A row a document and distance."""
    found = []
    score_from = reading.context - reading.passage + reading.lead
    longer = reading.model_copy(update={"context": reading.context + reading.passage, "windows": 1})
    under = Condition("full") if how.name == "new" else how
    with subject.entered(under) as counting:
        for which, (ids,) in subject.documents(name, longer):
            seen, new = windows(ids, reading)
            for place, distance in enumerate(reading.distances):
                window = (new if how.name == "new" else seen)[place : place + 1]
                own = score(subject.model, window, score_from, counting)
                found.append(subject.row(how, **which, distance=distance, **own))
    return found


def windows(ids: Tensor, how: Copying) -> tuple[Tensor, Tensor]:
    """A text's first T tokens, of which the last ``passage`` are those that stand ``distance``
    tokens before them.

    Args:
        ids: (T + passage,).

    Returns:
        (N, T) each: the windows, and the same ones with other text of the document in the place of
        the first reading, so that the passage is new where it stands.
    """
    total, length = how.context, how.passage
    seen, new = [], []
    for distance in how.distances:
        window = ids[:total].clone()
        start = total - length - distance
        window[-length:] = window[start : start + length]
        seen.append(window)
        other = window.clone()
        other[start : start + length] = ids[total : total + length]
        new.append(other)
    return torch.stack(seen), torch.stack(new)
