"""Full attention: every causal pair, the model's own way. The baseline of everything else."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from transformers import PreTrainedModel

from experiments.methods.base import Counting, Method
from experiments.settings.experiment import Budget
from focus.density import PairCounts


class FullAttention(Method):
    """The model as it is; with routers attached, as if there were none."""

    name = "full"

    @contextmanager
    def applied(self, model: PreTrainedModel, budget: Budget | None) -> Iterator[Counting]:
        """Nothing changes; every pair is kept."""
        yield PairCounts

    @classmethod
    def check(cls, settings: Any, budget: Budget | None, path: str) -> None:
        """Full attention has no budget."""
        if budget is not None:
            raise ValueError(f"{path}: method full keeps every pair; name no budget")


METHOD = FullAttention
