"""Counting of parameters: each verdict, from crafted result files."""

from __future__ import annotations

from analysis import tables
from analysis.rules import ARITHMETIC, INCONCLUSIVE, NOT_REPRODUCED, decide
from tests.analysis.verdicts import CLAIMS, verdict


def test_counting(results, settings):
    tables.write(results, results.root / "tables")
    assert verdict("routing_dim.r16.centroid_params", results, settings) == ARITHMETIC
    assert verdict("table4.focus-k2.trained_params", results, settings) == ARITHMETIC
    assert verdict("table1.focus.trained_params", results, settings) == NOT_REPRODUCED
    assert verdict("routing_dim.r16.percent_of_model", results, settings) == INCONCLUSIVE
    assert verdict("table2.notes.llama-2-70b.percent_of_model", results, settings) == ARITHMETIC
    assert verdict("table1.longformer.trained_params", results, settings) is None
    outcome = decide(CLAIMS["table3.focus-r16.trained_params"], results, settings)
    assert outcome.ours == 148224  # 12 * (768 * 16 + 4 * 16)
