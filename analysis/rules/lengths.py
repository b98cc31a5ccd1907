"""Rules of longer texts than routers were trained on: Section 4, long context."""

from __future__ import annotations

import pandas as pd

from analysis import lengths, scope
from analysis.paper import Claim, theirs
from analysis.results import Results
from analysis.rows import need, row_of
from analysis.rules.architectures import no_worse
from analysis.rules.registry import Outcome, facts, interval, rule
from experiments.settings import Tolerances


@rule("long_context.{row}.ppl_topk2", refuted="after as many steps, an interval above the paper's "
      "cost at that length")  # fmt: skip
def longer(claim: Claim, results: Results, limits: Tolerances) -> Outcome:
    """What two of four groups cost against full attention at one length."""
    context = claim.keys["context"]
    found = need(longest_trained(results, context))
    few = scope.fewer_steps(claim, results, found["cell"])
    cost = claim.figure / theirs("long_context", "ppl_full", context=context) - 1
    verdict, why = no_worse(found, cost, limits, few)
    why = f"at {context} tokens, trained at {found['trained_at']}, against full attention: {why}"
    return Outcome(verdict, why, **interval(found), **facts(found, results))


def longest_trained(results: Results, context: int) -> pd.Series | None:
    """The paper's setup at one length, of several trainings that of the most steps."""
    own = [row_of(lengths.table(results), method=lengths.LINES[name], context=context)
           for name in ("long_paper", "long_paper_steps")]  # fmt: skip
    known = [row for row in own if row is not None]
    return max(known, key=lambda row: scope.trained(results, results.cells[row["cell"]]),
               default=None)  # fmt: skip
