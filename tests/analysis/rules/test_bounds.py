"""The speed-up that the pairs kept allow: each verdict, from crafted result files."""

from __future__ import annotations

import pytest

from analysis.rules import ARITHMETIC, INCONCLUSIVE, NOT_REPRODUCED, decide
from tests.analysis.result_files import pretrained, write_speed, write_topk
from tests.analysis.verdicts import CLAIMS, changed, verdict


@pytest.mark.parametrize(("density", "expected"), [(0.86, ARITHMETIC), (0.4, NOT_REPRODUCED)])
def test_the_bound_of_top2(results, settings, density, expected):
    write_topk(results.root, [pretrained(), changed(2, 0.05, density=density)])
    write_speed(results.root, {"K": 4, "k": 2, "speedup": 1.1, "density": density})
    outcome = decide(CLAIMS["audit.2"], results, settings)
    assert outcome.verdict == expected
    assert outcome.ours == pytest.approx(1 / density)
    assert "measured 1.10x at 16384 tokens on cpu" in outcome.why


def test_speedups_above_the_bound_of_their_own_pairs(results, settings):
    write_topk(results.root, [pretrained(), changed(1, 1.0, density=0.43), changed(2, 0.05)])
    assert verdict("table7.gpt2-124m.k2.speedup", results, settings) == NOT_REPRODUCED
    assert verdict("table7.mistral-7b.k1.speedup", results, settings) == INCONCLUSIVE
