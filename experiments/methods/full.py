"""Full attention: every causal pair, the model's own way. The baseline of everything else."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

from transformers import PreTrainedModel

import focus
from experiments.methods.base import Counting, Method, Near
from experiments.methods.passes import Pass, watched
from experiments.settings.experiment import Budget
from focus.density import PairCounts
from focus.state import transformers_model


class FullAttention(Method):
    """The model as it is; with routers attached, as if there were none. The window and the sinks
    only say which pairs count as distant."""

    name = "full"
    takes = "nothing"
    Settings = Near

    @contextmanager
    def applied(self, model: PreTrainedModel, budget: Budget | None) -> Iterator[Counting]:
        """Nothing changes; every pair is kept."""
        self.check(self.settings, budget, "budget")
        routed = "focus_state" in transformers_model(model).__dict__

        def counted(seen: Pass) -> PairCounts:
            causal, near, distant, _ = seen.pairs(self.settings.window, self.settings.sinks)
            return PairCounts(causal, near, distant, distant)

        with focus.mode(model, "full") if routed else nullcontext(), watched(model) as last:
            yield lambda: counted(last())
