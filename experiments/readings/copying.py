"""Whether a mask finds a passage again that the window has held before.

A token of the second reading is all but certain to whoever finds the first one; perplexity of
ordinary text hardly asks for it. Beside the mask stand full attention, which copies (``full``), and
the same passage read for the first time (``new``).

Shapes: N distances, T tokens.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from experiments import texts
from experiments.readings.perplexity import entered
from experiments.readings.scoring import score
from experiments.readings.subject import Part, Rows, Subject
from experiments.settings import Budget, Copying


def parts(subject: Subject, reading: Copying) -> Iterator[Part]:
    """A part a kind of text, condition and budget."""
    masked = [] if subject.cell.method.name == "full" else list(subject.budgets)
    conditions = [("full", None), ("new", None), *(("hard", budget) for budget in masked)]
    for name in reading.texts:
        for condition, budget in conditions:
            part = f"{name}.{condition}.{budget}"
            yield part, lambda n=name, c=condition, b=budget: rows(subject, reading, n, c, b)


def rows(subject: Subject, reading: Copying, name: str, condition: str,
         budget: Budget | None) -> Rows:  # fmt: skip
    """A row a document and distance."""
    found = []
    score_from = reading.context - reading.passage + reading.lead
    longer = reading.model_copy(update={"context": reading.context + reading.passage, "windows": 1})
    documents = texts.reading_windows(longer, name, subject.cell.model, subject.chosen)
    with entered(subject, "hard" if condition == "hard" else "full", budget) as counting:
        for document, ((ids),) in documents:
            seen, new = windows(ids, reading)
            for place, distance in enumerate(reading.distances):
                window = (new if condition == "new" else seen)[place : place + 1]
                own = score(subject.model, window, score_from, counting)
                which = {"texts": name, "document": document.title, "sha": document.sha,
                         "distance": distance}  # fmt: skip
                found.append(subject.row(condition, budget, **which, **own.row))
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
