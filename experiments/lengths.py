"""Whether what a model is given to read, or to train on, fits into the positions that it has, and
is longer than the window of its method.

Benchmarks are not among it: how long their prompts are lm-eval says, and the reading itself refuses
those that are too long.
"""

from __future__ import annotations

import torch

from experiments import registry
from experiments.chat import asking
from experiments.chat.questions import QUESTIONS
from experiments.settings import Chat, Experiment, Reading, Ruler, Settings, Windows
from experiments.sources import catalogue, models


def refuse_block(block: str, chosen: Settings) -> None:
    """:func:`refuse`, for every cell and reading of an experiment."""
    for cell in chosen.cells(block).values():
        for name in cell.readings:
            refuse(name, chosen.readings[name], cell.model)


def short(block: str, chosen: Settings) -> list[str]:
    """What to tell of an experiment's trainings and readings that have no distant pair."""
    lines = []
    for cell in chosen.cells(block).values():
        asked = {name: chosen.readings[name] for name in cell.readings}
        texts = {f"reading {name}": reading.context for name, reading in asked.items()
                 if isinstance(reading, Windows)}  # fmt: skip
        if cell.trains:
            texts["regime"] = cell.regime.context
        lines += [f"{cell.name}: {what}: {told}" for what, tokens in texts.items()
                  if (told := near_alone(cell, tokens))]  # fmt: skip
    return lines


def refuse_training(cell: Experiment) -> None:
    """Refuses an experiment that trains on windows longer than its model's context: ValueError as
    of :func:`refuse`."""
    most, asked = positions(cell.model), getattr(cell.regime, "context", 0)
    if most is not None and asked > most:
        raise ValueError(f"experiments.{cell.block}.regime.context: {asked:,} tokens, and the "
                         f"context of {cell.model} has {most:,}; take at most {most:,}, or "
                         "another model")  # fmt: skip


def near_alone(cell: Experiment, tokens: int) -> str | None:
    """What to tell of texts so short that a cell's window and sinks hold every pair: whatever is
    routed or chosen there changes nothing. None: some pair is distant, or the method has no
    mask."""
    how = registry.find("method", cell.method.name).Settings(**cell.method.fields)
    window, sinks = getattr(how, "window", None), getattr(how, "sinks", 0)
    if cell.method.name == "full" or window is None or tokens > window + sinks:
        return None  # full attention has a window only to count pairs by
    return (f"no pair of {tokens:,} tokens is beyond a window of {window:,} and {sinks} sinks, so "
            "the mask hides nothing and routing changes nothing")  # fmt: skip


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
