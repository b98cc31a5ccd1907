"""The whole model under the recipe's mask beside the pretrained model, taking turns in one run.

Routing, further keys and all that Python adds are in its time. Routers are those of the experiments
that the plan names. Where it names none they are random, with potentials found on training windows:
groups of keys are then about equally full, as those of trained routers are.

Shapes: T tokens.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from statistics import median
from typing import Any

import pandas as pd
import torch
from torch import Tensor
from transformers import PreTrainedModel

import focus
from experiments import statistics, texts, trained, training
from experiments.methods.random import balance
from experiments.record import Run
from experiments.regimes.tensors import cast
from experiments.settings import Settings, Whole
from experiments.sources import models

Compare = Callable[["Models", Tensor, Settings], list[dict[str, Any]]]
FULL = "pretrained model"  # no name of an experiment, beside which it stands
UNTRAINED = "untrained"
FEWEST = 4  # rounds, whatever they take: one to warm up, three that an interval can rest on


@torch.no_grad()
def measure(run: Run, chosen: Settings, setting: str, compare: Compare, more: int = 0) -> None:
    """Writes the table of a measurement: what it compares, at every size of its plan.

    Args:
        setting: of the sizes in tokens, ``prefill.lengths``, say.
        compare: rows of models that read tokens (1, T), ``more`` than the size.
    """
    name, sizes = setting.split(".")
    plan, rows = getattr(chosen, name), []
    every = text(plan, max(getattr(plan, sizes)) + more, setting, chosen)
    for dtype in plan.dtypes:
        loaded = load(chosen, plan, dtype)
        for size in getattr(plan, sizes):
            # No progress bar here: its thread takes turns with the one that is timed.
            print(f"{name}: {size} tokens, {dtype}", flush=True)
            own = compare(loaded, every[:, : size + more].to(loaded.full.device), chosen)
            rows += [{**row, "dtype": dtype} for row in own]
    run.table(pd.DataFrame(rows), "table.csv")


@dataclass(frozen=True)
class Models:
    """The pretrained model, and those with routers by experiment (or :data:`UNTRAINED`)."""

    full: PreTrainedModel
    routed: Mapping[str, PreTrainedModel]

    @property
    def any_routed(self) -> PreTrainedModel:
        """One of those, where the routers do not matter."""
        return next(iter(self.routed.values()))


def load(chosen: Settings, plan: Whole, dtype: str) -> Models:
    """The plan's model in a number format, and the same with each experiment's routers, which are
    trained where they are not yet.

    Raises:
        ValueError: an experiment cannot be trained here, for want of its texts, say.
    """
    full, _ = models.load(plan.model, dtype)
    found = {name: routed(name, dtype, chosen) for name in plan.experiments}
    return Models(full, found or {UNTRAINED: untrained(full, plan, chosen)})


def routed(name: str, dtype: str, chosen: Settings) -> PreTrainedModel:
    """The model of an experiment's first seed, under the mask that its settings say."""
    cell = chosen.cell(name)
    if not trained.is_trained(cell, cell.seeds[0], chosen):
        training.train(cell.block, cell.seeds[0], chosen)
    model = trained.build(cell, cell.seeds[0], chosen).model
    return cast(model, models.resolve_dtype(dtype))


def untrained(full: PreTrainedModel, plan: Whole, chosen: Settings) -> PreTrainedModel:
    """A copy of the model that shares its weights, with ``FocusConfig.recipe()``."""
    weights = {id(each): each for each in (*full.parameters(), *full.buffers())}
    ours = focus.attach(copy.deepcopy(full, weights), focus.FocusConfig.recipe(), seed=chosen.seed)
    drawn = texts.training_windows(plan, chosen, plan.calibration_context, plan.calibration,
                                   chosen.seed)  # fmt: skip
    balance(ours, [drawn[i]["input_ids"].unsqueeze(0) for i in range(len(drawn))])
    return ours


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


def take_turns(runs: Mapping[str, Callable[[], float]], plan: Whole) -> dict[str, list[float]]:
    """Seconds of every method by round. Who goes first goes last in the next round; the first round
    warms up, and does not count.

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
    return {name: own[1:] for name, own in taken.items()}


def compared(taken: Mapping[str, list[float]], name: str, chosen: Settings) -> dict[str, Any]:
    """Medians, and the median of how many times as fast as the pretrained model an experiment's
    was, round by round, with an interval over rounds; ``amx``: whether the processor has tile
    registers for bfloat16 (None: torch does not tell)."""
    told = getattr(torch.cpu, "get_capabilities", dict)()
    ratios = [a / b for a, b in zip(taken[FULL], taken[name], strict=True)]
    how = chosen.intervals
    found = statistics.median(ratios, how.confidence, how.samples, chosen.seed)
    return {
        "experiment": name, "full_s": median(taken[FULL]), "ours_s": median(taken[name]),
        "speedup": found.value, "speedup_low": found.low, "speedup_high": found.high,
        "repetitions": len(ratios), "amx": told.get("amx_bf16"),
    }  # fmt: skip
