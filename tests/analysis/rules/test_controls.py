"""Routing against chance: each verdict, from crafted result files."""

from __future__ import annotations

import pytest

from analysis import tables
from analysis.rules import DIRECTION, INCONCLUSIVE, NOT_REPRODUCED, decide
from tests.analysis.result_files import write_controls
from tests.analysis.verdicts import CLAIMS


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [(0.01, 0.05, DIRECTION), (-0.01, 0.05, INCONCLUSIVE), (-0.05, -0.01, NOT_REPRODUCED)],
)
def test_controls_are_judged_by_their_paired_interval(results, settings, low, high, expected):
    middle = (low + high) / 2
    write_controls(results.root, ("random", 0.1, 0.05, 0.2), ("window", middle, low, high))
    outcome = decide(CLAIMS["audit.9"], results, settings)
    assert outcome.verdict == expected
    assert (outcome.low, outcome.high) == (low, high)
    assert "the window alone" in outcome.why
    assert len(tables.controls(results)) == 3
