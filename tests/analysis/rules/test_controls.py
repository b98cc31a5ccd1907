"""Routing against chance: each verdict, from crafted result files."""

from __future__ import annotations

import pytest

from analysis import tables
from analysis.rules import DIRECTION, INCONCLUSIVE, NOT_REPRODUCED, decide
from tests.analysis.result_files import write_controls, write_recipe
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


def test_the_nearest_control_of_each_finalist_stands_beside(results, settings):
    write_controls(results.root, ("random", 0.1, 0.05, 0.2))
    assert "With more training" not in decide(CLAIMS["audit.9"], results, settings).why
    apart = {"versus_routed": 0.04, "versus_routed_low": 0.03, "versus_routed_high": 0.05}
    far = {key: 10 * value for key, value in apart.items()}
    write_recipe(
        results.root, "long", {}, {"kind": "random", **far}, {"kind": "oracle", **apart},
        {"kind": "window", "ngram": 3, "distant_density": 0.25, **apart},
    )  # fmt: skip
    write_recipe(results.root, "searched", {"kind": "window", "final": False, **apart})
    del results.__dict__["recipe"]
    why = decide(CLAIMS["audit.9"], results, settings).why
    assert (
        "the nearest control of each: long the window alone, widened to the same density, "
        "with the same further keys +4.0% (+3.0% to +5.0%) at 25% of the distant pairs. Not"
    ) in why


@pytest.mark.parametrize(
    ("kind", "named"),
    [("position", "groups by position"), ("token", "groups by token identity"), ("oracle", None),
     ("oracle_heads", None)],
)  # fmt: skip
def test_rules_of_thumb_count_as_controls_and_oracles_do_not(results, settings, kind, named):
    """Where each is the nearest to the routers, and beats them."""
    write_controls(results.root, ("random", 0.1, 0.05, 0.2), (kind, -0.04, -0.05, -0.03))
    far = {"versus_routed": 0.4, "versus_routed_low": 0.3, "versus_routed_high": 0.5}
    near = {name: value / 100 for name, value in far.items()}
    write_recipe(results.root, "long", {}, {"kind": "window", **far}, {"kind": kind, **near})
    outcome = decide(CLAIMS["audit.9"], results, settings)
    assert outcome.verdict == (NOT_REPRODUCED if named else DIRECTION)
    nearest = f"long {named} +0.4%" if named else "long the window alone, widened"
    assert f"the nearest control of each: {nearest}" in outcome.why
    assert "oracle" not in outcome.why
