"""The spread of seeds: each verdict, from crafted result files."""

from __future__ import annotations

import pytest

from analysis.rules import DIRECTION, INCONCLUSIVE, decide
from tests.analysis.result_files import write_recipe
from tests.analysis.verdicts import CLAIMS, verdict


@pytest.mark.parametrize(
    ("worst", "seeds", "expected"),
    [(0.030, 3, DIRECTION), (0.018, 3, INCONCLUSIVE), (0.030, 2, None)],
)
def test_one_seed_is_held_against_the_spread_of_several(results, settings, worst, seeds, expected):
    write_recipe(results.root, "default", {"delta_most": worst, "seeds": seeds}, {"kind": "random"})
    assert verdict("audit.10", results, settings) == expected


def test_one_seed_must_say_too_little_in_every_finalist(results, settings):
    write_recipe(results.root, "default", {"delta_most": 0.030}, {"kind": "random"})
    write_recipe(results.root, "long", {"delta_most": 0.018}, {"kind": "random"})
    outcome = decide(CLAIMS["audit.10"], results, settings)
    assert outcome.verdict == INCONCLUSIVE
    assert "default 1 of 1; long 0 of 1" in outcome.why


def test_seeds_of_trials_in_search_do_not_count(results, settings):
    write_recipe(results.root, "searched", {"final": False, "delta_most": 0.5})
    assert verdict("audit.10", results, settings) is None
