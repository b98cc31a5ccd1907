"""The decomposition against the definition: each verdict, from crafted result files."""

from __future__ import annotations

import pytest

from analysis.rules import DIRECTION, NOT_REPRODUCED, REPRODUCED, decide
from tests.analysis.result_files import write_exactness
from tests.analysis.verdicts import CLAIMS, verdict


def test_exactness_may_reproduce_plainly(results, settings):
    write_exactness(results.root, {}, {"k": 2}, {"method": "subtraction", "output_cosine": 0.8})
    outcome = decide(CLAIMS["decomposition.log-sum-exp.cosine"], results, settings)
    assert (outcome.verdict, outcome.n, outcome.ours) == (REPRODUCED, 2, 1.0)
    assert verdict("decomposition.subtraction.cosine", results, settings) == DIRECTION


@pytest.mark.parametrize("bad", [{"output_cosine": 0.9}, {"passed": False}])
def test_one_bad_case_is_enough(results, settings, bad):
    write_exactness(results.root, {}, bad)
    assert verdict("decomposition.log-sum-exp.cosine", results, settings) == NOT_REPRODUCED


def test_subtraction_that_is_exact_refutes_the_paper(results, settings):
    write_exactness(results.root, {"method": "subtraction", "output_cosine": 1.0})
    assert verdict("decomposition.subtraction.cosine", results, settings) == NOT_REPRODUCED
