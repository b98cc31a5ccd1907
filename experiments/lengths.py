"""Whether what a reading gives a model to read fits into the positions that the model has.

Benchmarks are not among it: how long their prompts are lm-eval says, and the reading itself refuses
those that are too long.
"""

from __future__ import annotations

import torch

from experiments.chat import asking
from experiments.chat.questions import QUESTIONS
from experiments.settings import Chat, Reading, Ruler, Settings, Windows
from experiments.sources import catalogue, models


def refuse_block(block: str, chosen: Settings) -> None:
    """:func:`refuse`, for every cell and reading of an experiment."""
    for cell in chosen.cells(block).values():
        for name in cell.readings:
            refuse(name, chosen.readings[name], cell.model)


def refuse(name: str, reading: Reading, model: str) -> None:
    """Refuses a reading that is longer than a model's context.

    Args:
        name: of the reading; ``model``: a source, whose config is there, or nothing is refused.

    Raises:
        ValueError: the message starts with the field's name, and says what would fit.
    """
    most = positions(model)
    if most is None or reading.kind == "benchmarks":
        return
    field, asked, beside = longest(reading, model)
    if asked + beside > most:
        told = f"{asked:,} tokens" + (f" and {beside:,} of question and answer" if beside else "")
        cure = f"take at most {max(most - beside, 0):,}, or another model"
        raise ValueError(f"readings.{name}.{field}: {told}, and the context of {model} has "
                         f"{most:,}; {cure}")  # fmt: skip


def longest(reading: Reading, model: str) -> tuple[str, int, int]:
    """The field that says how much is read at once, so many tokens, and those that come beside."""
    if isinstance(reading, Ruler):
        return "lengths", max(reading.lengths), 0
    if isinstance(reading, Chat):
        tokenizer, nothing = models.load_tokenizer(model), torch.tensor([], dtype=torch.long)
        bare = max(asking.prompt(tokenizer, question, nothing).shape[1]
                   for question in QUESTIONS[: reading.questions])  # fmt: skip
        return "before", max(reading.before), bare + reading.answer
    assert isinstance(reading, Windows)  # noqa: S101 - no other kind is left
    return "context", reading.context, 0


def positions(model: str) -> int | None:
    """Tokens that a model reads at most; None where it was not fetched, or its config says none."""
    fetched = (catalogue.ROOT / model / "config.json").is_file()
    if model not in models.TINY and not fetched:
        return None
    return getattr(models.config(model), "max_position_embeddings", None)
