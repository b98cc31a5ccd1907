"""The whole model by ``FocusConfig.recipe()`` beside the pretrained model, taking turns in one run.

Routing, further keys and all that Python adds are in the recipe's time. Its routers are random,
with potentials found on training windows: groups of keys are then about equally full, as those of
trained routers are, and what a group means costs nothing.

Shapes: T tokens.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from statistics import median
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

import focus
from experiments import statistics, texts
from experiments.kernels import timing
from experiments.methods.random import balance
from experiments.settings import Settings, Whole
from experiments.sources import models

FULL, OURS = "full", "ours"
FEWEST = 2  # rounds, whatever they take


@dataclass(frozen=True)
class Both:
    """The pretrained model, and the same weights with the recipe's routers."""

    full: PreTrainedModel
    ours: PreTrainedModel


def load(chosen: Settings, plan: Whole) -> Both:
    """The plan's model in its number format, and a copy that shares its weights."""
    full, _ = models.load(plan.model, plan.dtype)
    weights = {id(each): each for each in (*full.parameters(), *full.buffers())}
    ours = focus.attach(copy.deepcopy(full, weights), focus.FocusConfig.recipe(), seed=chosen.seed)
    drawn = texts.training_windows(plan, chosen, plan.calibration_context, plan.calibration,
                                   chosen.seed)  # fmt: skip
    balance(ours, [drawn[i]["input_ids"].unsqueeze(0) for i in range(len(drawn))])
    return Both(full, ours)


def text(plan: Whole, tokens: int, setting: str, chosen: Settings) -> Tensor:
    """The first tokens (1, T) of the validation documents, one after the other: what is timed
    needs no untouched ones.

    Raises:
        ValueError: they are shorter; ``setting`` is what asks for too much.
    """
    documents = texts.documents(plan.texts, "validation", plan.model, chosen)
    every = torch.cat([document.tokens for document in documents])
    if len(every) < tokens:
        raise ValueError(f"{setting}: the validation side of {plan.texts} has only {len(every)} "
                         "tokens in all")  # fmt: skip
    return every[:tokens].unsqueeze(0)


def seconds(run: Callable[[], object], device: torch.device) -> float:
    """Seconds of one call."""
    timing.wait(device)
    started = time.perf_counter()
    run()
    timing.wait(device)
    return time.perf_counter() - started


def take_turns(runs: Mapping[str, Callable[[], float]], plan: Whole) -> dict[str, list[float]]:
    """Seconds of every method by round. Who goes first goes last in the next round; the first round
    warms up, and counts only where there is no time for more than two.

    Args:
        runs: calls that tell their own seconds.
        plan: gives the time and the most rounds.
    """
    taken: dict[str, list[float]] = {name: [] for name in runs}
    end = time.perf_counter() + plan.seconds
    for number in range(plan.most_repetitions + 1):
        started = time.perf_counter()
        for name in list(runs)[:: -1 if number % 2 else 1]:
            taken[name].append(runs[name]())
        now = time.perf_counter()
        if number + 1 >= FEWEST and now + (now - started) > end:
            break
    warm = len(taken[FULL]) > FEWEST
    return {name: own[1:] if warm else own for name, own in taken.items()}


def compared(taken: Mapping[str, list[float]], chosen: Settings) -> dict[str, Any]:
    """Medians, and the median of how many times as fast as the pretrained model the recipe was,
    round by round, with an interval over rounds."""
    ratios = [a / b for a, b in zip(taken[FULL], taken[OURS], strict=True)]
    how = chosen.intervals
    found = statistics.median(ratios, how.confidence, how.samples, chosen.seed)
    return {
        "full_s": median(taken[FULL]), "ours_s": median(taken[OURS]), "speedup": found.value,
        "speedup_low": found.low, "speedup_high": found.high, "repetitions": len(ratios),
    }  # fmt: skip
