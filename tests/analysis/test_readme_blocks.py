"""What stands between README's markers."""

from __future__ import annotations

import pytest

import focus
from analysis import claims, readme
from analysis.results import Results
from tests.analysis.result_files import (
    RECIPE,
    ROUTERS,
    write_adapted,
    write_masks,
    write_pretrained,
    write_ruler,
    write_table,
)

BUDGETS = {0.0625: 0.02, 0.125: 0.0, 0.25: -0.02}


@pytest.fixture
def read(results):
    write_pretrained(results.root)
    write_adapted(results.root)
    for k, (budget, change) in zip((1, 2, 4), BUDGETS.items(), strict=True):
        mask = {"top_k": k, "probe": "symmetric" if k == 1 else "multi_probe"}
        write_masks(results.root, "recipe", {budget: change}, regime=ROUTERS, rows=mask)
    for name in ("window", "random", "position"):
        write_masks(results.root, name, BUDGETS, method={"name": name})
    write_table(results.root, "prefill", {"length": 64, "speedup": 0.9}, {"length": 16384})
    return results


def test_the_recipe_whose_speed_is_timed_is_the_librarys_default():
    config = focus.FocusConfig.recipe()
    known = {"K": config.num_groups, "top_k": config.top_k, "probe": config.probe,
             "ngram": config.ngram}  # fmt: skip
    assert known == readme.RECIPE


def test_the_headline_says_both_baselines_in_one_sentence(read):
    text = readme.sentence(read)
    assert text.count("\n") == 0
    assert "+11.1% (" in text
    assert "+0.0% (" in text
    assert "adapted on the same texts" in text
    assert "results/laptop/recipe/read/final/rows.csv" in text


def test_answers_found_are_told_at_the_longest_prompts(results):
    write_ruler(results.root, 0.1, found=0.5)
    write_ruler(results.root, 0.3, found=0.25, block="ruler_window", method={"name": "window"},
                against=["ruler_adapted", "ruler_recipe"])  # fmt: skip
    text = readme.answers(results)
    assert "over 2,048 tokens the adapted model finds the answer of 100%" in text
    first, second = (text.index(f"\N{MINUS SIGN}{lost}.0 points") for lost in (50, 75))
    assert first < second


def test_nothing_asked_is_said(results):
    assert readme.answers(results) == readme.NOTHING


def test_speed_stands_in_the_row_of_the_configuration_that_was_timed(read):
    lines = readme.table(read).splitlines()[2:]
    assert len(lines) == 5
    (timed,) = [line for line in lines if "at 16,384 tokens" in line]
    assert "2 groups a query: `FocusConfig.recipe()`" in timed
    assert "12.5%" in timed
    assert "(results/laptop/prefill/table.csv)" in timed
    assert all("/rows.csv)" in line for line in lines)


def test_heavy_hitters_stand_beside_the_recipe(read):
    assert readme.heavy(read) == readme.NOTHING
    write_masks(read.root, "heavy", {0.125: -0.05}, regime=ROUTERS,
                method=RECIPE | {"heavy_hitters": 0.02})  # fmt: skip
    beside = Results(read.base)
    text = readme.heavy(beside)
    assert "2% of the tokens" in text
    assert "+5.6% (" in text
    assert "results/laptop/heavy/read/final/rows.csv" in text
    lines = readme.table(beside).splitlines()[2:]
    assert len(lines) == 4
    assert "with heavy hitters, 2 groups a query" in lines[0]
    assert "`FocusConfig.recipe()`" in lines[1]


def test_what_was_not_measured_is_said_so(results):
    assert readme.sentence(results) == readme.table(results) == readme.NOTHING


def test_only_what_is_between_markers_changes(read, settings):
    rows = claims.build(read, settings)
    text = (
        "# A\n<!-- ledger -->\nold\n<!-- /ledger -->\n`kept`\n<!-- results -->\n<!-- /results -->\n"
    )
    new = readme.rendered(text, read, rows)
    assert "old" not in new
    assert new.startswith(f"# A\n<!-- ledger -->\nOf {len(rows)} rows")
    assert "`kept`" in new
    assert readme.rendered(new, read, rows) == new


@pytest.mark.parametrize("text", ["<!-- other -->\n<!-- /other -->\n", "<!-- ledger -->\nx\n"])
def test_a_marker_that_means_nothing_is_named(read, text):
    with pytest.raises(ValueError, match="README marker"):
        readme.rendered(text, read, [])
