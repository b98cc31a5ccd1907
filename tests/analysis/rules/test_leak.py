"""Whether a later token changes the past: each verdict, from crafted result files."""

from __future__ import annotations

import pytest

from analysis.rules import DIRECTION, INCONCLUSIVE, NOT_REPRODUCED, decide
from tests.analysis.result_files import write_leak
from tests.analysis.verdicts import CLAIMS


@pytest.mark.parametrize(
    ("sinkhorn", "causal", "expected"),
    [
        (0.08, 0.0, DIRECTION),
        (0.0, 0.0, NOT_REPRODUCED),
        (0.08, 0.02, NOT_REPRODUCED),
        (0.0011, 0.0, INCONCLUSIVE),
    ],
)
def test_leak(results, settings, sinkhorn, causal, expected):
    write_leak(results.root, sinkhorn, causal)
    outcome = decide(CLAIMS["audit.5"], results, settings)
    assert (outcome.verdict, outcome.n) == (expected, 4)
    assert (
        "k4_sinks0, sinkhorn: +1.0% (+0.0% to +2.0%) at density 0.450; "
        "k4_sinks0, causal: +2.0% (+1.0% to +3.0%) at density 0.460."
    ) in outcome.why


def test_a_trials_own_assignments_count_as_well(results, settings):
    write_leak(results.root, 0.08, 0.0)
    write_leak(results.root, 0.2, 0.02, "prose-symmetric-k1", "prose")
    outcome = decide(CLAIMS["audit.5"], results, settings)
    assert (outcome.verdict, outcome.ours) == (NOT_REPRODUCED, 0.08)
    assert (
        "prose-symmetric-k1, causal: 2.00% (1.60% to 2.40%); causal: elsewhere none." in outcome.why
    )
    assert outcome.evidence == "results/leak/metrics.json"


def test_the_evidence_is_the_trials_where_no_variant_was_measured(results, settings):
    write_leak(results.root, 0.2, 0.0, "prose-symmetric-k1", "prose")
    outcome = decide(CLAIMS["audit.5"], results, settings)
    assert (outcome.verdict, outcome.ours) == (DIRECTION, 0.2)
    assert "sinkhorn: 20.00% (16.00% to 24.00%); causal: none. Perplexity" in outcome.why
    assert outcome.evidence == "results/leak/prose/metrics.json"
    assert outcome.command == "python -m experiments.stages.leak --trial prose"
