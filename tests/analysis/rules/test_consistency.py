"""The paper held against itself: each verdict, from crafted result files."""

from __future__ import annotations

from analysis import tables
from analysis.rules import ARITHMETIC, decide
from tests.analysis.verdicts import CLAIMS


def test_the_papers_tables_disagree_with_each_other(results, settings):
    tables.write(results, results.root / "tables")
    outcome = decide(CLAIMS["audit.7"], results, settings)
    assert outcome.verdict == ARITHMETIC
    assert "34.2 to 38.4" in outcome.why
