"""What masks nothing: k = 3 and k = 4 of K = 4: each verdict, from crafted result files."""

from __future__ import annotations

import pytest

from analysis.rules import ARITHMETIC, NOT_REPRODUCED
from tests.analysis.result_files import pretrained, write_topk
from tests.analysis.verdicts import identity, verdict


def test_three_of_four_holds_by_arithmetic_where_the_paper_agrees_with_itself(results, settings):
    write_topk(results.root, [pretrained(), *identity()])
    for name in ("ppl", "delta", "pairs_retained"):
        assert verdict(f"table7.mistral-7b.k3.{name}", results, settings) == ARITHMETIC
    for name in (
        "table7.gpt2-124m.k3.pairs_retained",
        "table7.mistral-7b.k4.speedup",
        "audit.1",
        "table2.notes.every-scale.topk3",
        "long_context.t1024.ppl_topk3",
    ):
        assert verdict(name, results, settings) == ARITHMETIC
    for name in (
        "table7.gpt2-124m.k3.ppl",
        "table7.gpt2-124m.k4.delta",
        "table7.gpt2-124m.k3.speedup",
        "long_context.t8192.ppl_topk3",
    ):
        assert verdict(name, results, settings) == NOT_REPRODUCED


@pytest.mark.parametrize("broken", [{"density": 0.99}, {"max_logit_difference": 0.5}])
def test_no_identity_no_arithmetic(results, settings, broken):
    rows = [entry | broken for entry in identity()]
    write_topk(results.root, [pretrained(), *rows])
    assert verdict("audit.1", results, settings) == NOT_REPRODUCED
    assert verdict("table7.mistral-7b.k3.ppl", results, settings) == NOT_REPRODUCED
    assert verdict("long_context.t1024.ppl_topk3", results, settings) is None
