"""Copying of a passage read before: each verdict, from crafted result files."""

from __future__ import annotations

import pytest

from analysis.claims import build
from analysis.rules import DIRECTION, INCONCLUSIVE, NOT_REPRODUCED, decide
from tests.analysis.result_files import write_copying, write_recipe
from tests.analysis.verdicts import CLAIMS, verdict

COPIES = {"copied": 0.96, "copied_low": 0.93, "copied_high": 0.99}
NEW = {"kind": "new", "reading": "pretrained", "above": 3.0, "copied": 0.0}


@pytest.mark.parametrize(
    ("copied", "low", "high", "expected"),
    [(0.5, 0.4, 0.6, DIRECTION), (0.9, 0.8, 1.0, INCONCLUSIVE), (0.95, 0.91, 0.99, NOT_REPRODUCED)],
)
def test_copying_is_judged_by_every_mask_of_good_perplexity(
    results, settings, copied, low, high, expected
):
    """One that copies takes nothing from one that does not."""
    far = {"reading": "symmetric.k3", "delta": 0.3}
    write_recipe(results.root, "prose", {}, {"reading": "symmetric.k2"}, far)
    assert verdict("audit.11", results, settings) is None
    own = {"copied": copied, "copied_low": low, "copied_high": high}
    bad = {"copied": 0.0, "copied_low": 0.0, "copied_high": 0.0}  # what is not asked for
    write_copying(
        results.root, "prose", own, {"reading": "symmetric.k2", **COPIES}, NEW,
        {"reading": "symmetric.k3", **bad}, {"kind": "random", **bad, "copied": 0.07},
    )  # fmt: skip
    del results.__dict__["copying"]
    outcome = decide(CLAIMS["audit.11"], results, settings)
    assert (outcome.verdict, outcome.ours) == (expected, copied)
    assert "of 2 masks within 2% of the pretrained perplexity" in outcome.why
    assert "; random routers 7%) at" in outcome.why


def test_copying_is_open_where_nothing_can_be_copied_or_no_mask_is_good(results, settings):
    write_recipe(results.root, "prose", {})
    write_copying(results.root, "prose", COPIES, NEW | {"above": -0.1})
    outcome = decide(CLAIMS["audit.11"], results, settings)
    assert outcome.verdict == INCONCLUSIVE
    assert "copies nothing" in outcome.why
    rows = {entry["id"]: entry for entry in build(results, settings)}  # the ledger takes it so
    assert rows["audit.11"]["evidence"] == "results/copying/prose/table.csv"
    write_recipe(results.root, "prose", {"delta": 0.3})
    del results.__dict__["recipe"]
    assert "no mask within 2%" in decide(CLAIMS["audit.11"], results, settings).why
