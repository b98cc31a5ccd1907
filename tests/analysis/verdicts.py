"""What the tests of the ledger's rules share."""

from __future__ import annotations

from analysis.paper import claims
from analysis.rules import decide
from tests.analysis.result_files import row

CLAIMS = {claim.id: claim for claim in claims()}


def verdict(name, results, settings):
    outcome = decide(CLAIMS[name], results, settings)
    return None if outcome is None else outcome.verdict


def changed(top_k, middle, half=0.02, **values):
    return row(
        top_k=top_k, delta=middle, delta_low=middle - half, delta_high=middle + half, **values
    )


def identity(**values):
    same = {"density": 1.0, "max_logit_difference": 0.0, "ppl": 38.0} | values
    return [changed(k, 0.0, 0.0, **same) for k in (3, 4)]
