"""Rules of longer texts than routers were trained on: Section 4, long context."""

from __future__ import annotations

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
    own = lengths.table(results)
    found = need(row_of(own, method=lengths.LINES["long_paper"], context=context))
    few = scope.fewer_steps(claim, results, found["cell"])
    cost = claim.figure / theirs("long_context", "ppl_full", context=context) - 1
    verdict, why = no_worse(found, cost, limits, few)
    why = f"at {context} tokens, trained at {found['trained_at']}, against full attention: {why}"
    return Outcome(verdict, why, **interval(found), **facts(found, results))
