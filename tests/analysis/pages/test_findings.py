"""Sentences of docs/findings.md, and figures that would not bear them out."""

from __future__ import annotations

import pandas as pd
import pytest

from analysis.pages import findings
from analysis.words import percent, pointed
from tests.analysis.group_files import write_contents
from tests.analysis.result_files import ROUTERS, write_adapted, write_masks

MINUS = "\N{MINUS SIGN}"
UP = pd.Series({"cell": "a", "change": 0.0432, "low": 0.04, "high": 0.0461})
DOWN = pd.Series({"cell": "b", "change": -0.112, "low": -0.12, "high": -0.1})
SCORE = pd.Series({"points": -5.7, "points_low": -11.0, "points_high": -0.4, "low": 9, "high": 9})


def test_figures_as_sentences_have_them():
    assert findings.cost(UP) == "4.3%"
    assert findings.cost(UP, 0, ends=True) == "4% (4 to 5)"
    assert findings.gain(DOWN, ends=True) == "11.2% (10.0 to 12.0)"
    assert findings.lost(SCORE, ends=True) == "5.7 points (0.4 to 11.0)"
    assert percent(DOWN) == f"{MINUS}11.2% ({MINUS}12.0 to {MINUS}10.0)"
    assert pointed(SCORE) == f"{MINUS}5.7 points ({MINUS}11.0 to {MINUS}0.4)"
    assert findings.span(pd.DataFrame([UP, DOWN])) == f"{MINUS}11.2 to 4.3%"
    assert findings.costs(pd.DataFrame([UP, UP])) == "4.3%"
    assert findings.value(pd.Series({"a": -0.001}), "a", 1) == "0.0"
    assert findings.rest(pd.Series({"a": 36, "a_low": 30, "a_high": 40}), "a") == "64% (60 to 70)"


@pytest.mark.parametrize(
    "asked",
    [
        lambda: findings.above(DOWN, UP),
        lambda: findings.below(UP, "change", 0.045),
        lambda: findings.sure(DOWN, "change"),
        lambda: findings.unsure(UP, "change"),
        lambda: findings.cost(DOWN),
        lambda: findings.costs(pd.DataFrame([UP, DOWN])),
        lambda: findings.gain(UP),
        lambda: findings.lost(SCORE * -1),
        lambda: findings.level(SCORE),
        lambda: findings.none(UP, "change"),
    ],
)
def test_a_figure_that_goes_the_other_way_is_refused(asked):
    with pytest.raises(ValueError, match="findings: "):
        asked()


def test_a_row_must_be_the_only_one(results):
    write_adapted(results.root)
    write_masks(results.root, "recipe", {0.125: 0.1, 0.25: 0.2}, regime=ROUTERS, start="adapted")
    asked = findings.found(results, [])
    with pytest.raises(ValueError, match="2 rows of quality have"):
        asked["row"]("quality", cell="recipe")
    row = asked["row"]("quality", cell="recipe", budget="0.25")
    assert row["distant_density"] == 0.25


@pytest.mark.parametrize("last", [0.95, None])
def test_k_means_is_said_to_be_as_pure_only_where_it_is(results, last):
    write_contents(results.root, 0.9, last=last)
    row, rows = (findings.found(results, [])[name] for name in ("row", "rows"))
    for asked in (row("purest", category="punctuation", by="kmeans"), rows("purest", by="kmeans")):
        if last:
            assert findings.unsure(asked, "ours_more") is asked
        else:
            with pytest.raises(ValueError, match="findings: "):
                findings.unsure(asked, "ours_more")


def test_a_line_without_results_says_so(results):
    page = findings.page(results, [])
    lines = [line for line in page.split("\n") if line.startswith("| ")]
    assert sum(" not measured | " in line for line in lines) > 15
    assert all(line.endswith(" |") for line in lines)
    assert "- **Copying.** \N{EN DASH} not measured." in page
    assert "{{" not in page
    assert "any two sets of three out of four share a group" in page
