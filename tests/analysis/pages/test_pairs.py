"""Sentences of pairs that belong together, for and against."""

from __future__ import annotations

from typing import Any

import pytest

from analysis.pages import findings
from tests.analysis.group_files import write_affinity, write_induction
from tests.analysis.result_files import RECIPE, ROUTERS

OURS: dict[str, Any] = {"method": RECIPE, "regime": ROUTERS, "cell": "copies"}


def test_what_is_left_out_is_said_with_its_chance(results):
    write_induction(results.root, 0.35, 0.5, **OURS)
    (line,) = (each for each in findings.page(results, []).split("\n") if "leave out" in each)
    assert "leave out 64% (6" in line
    assert "by chance it would be 80%" in line


@pytest.mark.parametrize(("found", "dearer"), [(0.6, 0.5), (0.1, 0.5), (0.35, -0.5)])
def test_figures_that_say_the_opposite_are_refused(results, found, dearer):
    write_induction(results.root, found, dearer, **OURS)
    with pytest.raises(ValueError, match=r"^findings: "):
        findings.page(results, [])


def test_a_link_is_the_recipes_without_n_gram_keys(results):
    write_affinity(results.root, {"name": 0.4, "word": 0.3}, **OURS)
    assert findings.found(results, [])["linked"]("name")["more"] == pytest.approx(30.5, abs=0.1)
