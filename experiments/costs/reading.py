"""Operations, memory and hours of reading a model: what its readings pass through it.

Every condition counts as full attention over all its windows: a mask may take less time, and hardly
more. A question of a benchmark counts as :data:`QUESTION` tokens, all its answers together, and a
task has as many as the reading asks for at most: both are more than there are. Of several devices,
where one does not hold the model, one works at a time: hours are those of one.
"""

from __future__ import annotations

from collections import Counter
from functools import cache
from typing import Any

from experiments.costs import shapes, tracing
from experiments.costs.estimate import DTYPES, Hardware, Sizes, longest, routing
from experiments.costs.tracing import Traced
from experiments.settings import Experiment, Reading, Settings

QUESTION = 1024


def reading(cell: Experiment, chosen: Settings, hardware: Hardware) -> dict[str, Any]:
    """What reading a cell takes, all its seeds: windows and their tokens, operations, hours, and
    bytes of all devices.

    Raises:
        ValueError: a kind of reading that is not counted here.
    """
    passes: Counter[int] = Counter()
    for name in cell.readings:
        passes += windows(cell, chosen.readings[name])
    shape = shapes.config(cell.model)
    traced = {context: passed(cell.model, cell.dtype, min(context, longest(shape, context)))
              for context in passes}  # fmt: skip
    flops = len(cell.seeds) * sum(passes[each] * one.flops for each, one in traced.items())
    sizes = Sizes.of(shapes.build(shape, DTYPES[cell.dtype], routing(cell)))
    most = max((one.cache + one.activations for one in traced.values()), default=0)
    return {"read_windows": passes.total(), "read_context": max(passes, default=0),
            "read_flops": flops, "read_total": sizes.weights + sizes.routers + most,
            "read_hours": flops / (hardware.share * hardware.tflops * 1e12) / 3600}  # fmt: skip


def windows(cell: Experiment, how: Reading) -> Counter[int]:
    """How many windows of how many tokens a reading passes through a cell's model."""
    conditions = max(1, len(cell.budgets))
    if how.kind == "benchmarks":
        return Counter({QUESTION: conditions * len(how.tasks) * len(how.shots) * how.questions})
    if how.kind not in ("perplexity", "positions"):
        raise ValueError(f"experiments.{cell.block}.readings: what one of kind {how.kind} takes is "
                         "not counted")  # fmt: skip
    if cell.method.name == "focus" and getattr(how, "soft", False):
        conditions += 1
    return Counter({how.context: conditions * len(how.texts) * how.documents * how.windows})


@cache
def passed(model: str, dtype: str, context: int) -> Traced:
    """One window through a model."""
    return tracing.inference(shapes.build(shapes.config(model), DTYPES[dtype]), 1, context)
