"""Trials against each other, from crafted losses by document."""

from __future__ import annotations

import math

import pytest

from analysis.paired import paired
from tests.analysis.result_files import write_losses, write_recipe

MASK = "symmetric.k1"


def trial(results, name, losses, pretrained=1.0, **values):
    write_recipe(results.root, name, values)
    full = dict.fromkeys(losses, pretrained)
    write_losses(results.root, name, {MASK: losses, "pretrained": full})


def test_a_difference_is_paired_by_document(results):
    """Documents that differ far more than trials do widen no interval."""
    trial(results, "first", {"a": 2.0, "b": 5.0, "c": 3.0}, distant_density=0.05)
    trial(results, "second", {"a": 2.1, "b": 5.1, "c": 3.1}, seeds=2)
    (row,) = paired(results).to_dict("records")
    assert (row["trial"], row["against"], row["reading"]) == ("second", "first", MASK)
    for name in ("change", "low", "high"):
        assert row[name] == pytest.approx(math.expm1(0.1))
    assert (row["distant_density"], row["distant_density_against"]) == (0.06, 0.05)
    assert (row["seeds"], row["seeds_against"], row["n_documents"]) == (2, 3, 3)


def test_what_the_pretrained_model_changed_by_is_no_trials_doing(results):
    """Another processor rounds otherwise."""
    trial(results, "first", {"a": 2.0, "b": 5.0})
    trial(results, "second", {"a": 2.3, "b": 5.3}, pretrained=1.2)
    (row,) = paired(results).to_dict("records")
    assert row["change"] == pytest.approx(math.expm1(0.1))


def test_the_interval_is_that_of_documents_drawn_anew(results):
    trial(results, "first", {"a": 2.0, "b": 5.0})
    trial(results, "second", {"a": 1.8, "b": 5.4})
    (row,) = paired(results).to_dict("records")
    assert row["change"] == pytest.approx(math.expm1(0.1))
    # Of two documents a quarter of the draws holds one of them alone.
    assert row["low"] == pytest.approx(math.expm1(-0.2))
    assert row["high"] == pytest.approx(math.expm1(0.4))


def test_other_documents_and_trials_in_search_are_left_out(results):
    trial(results, "first", {"a": 2.0, "b": 5.0})
    trial(results, "other", {"a": 2.0, "c": 5.0})
    trial(results, "searched", {"a": 2.0, "b": 5.0}, final=False)
    assert paired(results).empty


def test_each_corpus_is_a_comparison_of_its_own(results):
    for name, loss in (("first", 2.0), ("second", 2.2)):
        for corpus in ("sotu", "pg19"):
            trial(results, name, {"a": loss, "b": loss})
            (results.root / "transfer").mkdir(exist_ok=True)
            (results.root / "recipe" / name).rename(results.root / "transfer" / f"{name}-{corpus}")
    frame = paired(results)
    assert sorted(frame["texts"]) == ["pg19", "sotu"]
    assert frame["change"].tolist() == pytest.approx([math.expm1(0.2)] * 2)
