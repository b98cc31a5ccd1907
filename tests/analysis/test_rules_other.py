"""Each verdict of the rules on speed, exactness, leak and counting."""

from __future__ import annotations

import json

import pytest

from analysis import tables
from analysis.claims import build
from analysis.paper import claims
from analysis.rules import (
    ARITHMETIC,
    DIRECTION,
    INCONCLUSIVE,
    NOT_REPRODUCED,
    REPRODUCED,
    decide,
)
from tests.analysis.result_files import (
    write_controls,
    write_copying,
    write_exactness,
    write_leak,
    write_recipe,
    write_speed,
)

CLAIMS = {claim.id: claim for claim in claims()}


def verdict(name, results, settings):
    outcome = decide(CLAIMS[name], results, settings)
    return None if outcome is None else outcome.verdict


@pytest.mark.parametrize(
    ("speedup", "expected"), [(3.0, DIRECTION), (0.7, INCONCLUSIVE), (1.01, INCONCLUSIVE)]
)
def test_table6_on_other_hardware_is_direction_only(results, settings, speedup, expected):
    write_speed(results.root, {"speedup": speedup})
    assert verdict("table6.t16384.speedup_K8", results, settings) == expected
    assert verdict("table6.t1048576.speedup_K8", results, settings) is None


def test_the_papers_own_decomposition_counts_first_and_ours_stands_beside(results, settings):
    write_speed(results.root, {"speedup": 5.0}, {"speedup": 1.7, "method": "paper_k1"})
    outcome = decide(CLAIMS["table6.t16384.speedup_K8"], results, settings)
    assert outcome.ours == 1.7
    assert outcome.low < 1.7 < outcome.high
    assert "ours at the same place 5.00x" in outcome.why


def gpu_report(root, device, speedup, *lengths):
    row = {
        "length": 16384,
        "K": 8,
        "k": 1,
        "probe": "symmetric",
        "method": "paper_k1",
        "direction": "forward",
        "speedup": speedup,
        "median_s": 1.0,
        "low_s": 0.99,
        "high_s": 1.01,
        "heads": 32,
        "key_heads": 8,
        "head_dim": 128,
        "dtype": "bfloat16",
        "density": 0.13,
        "bound": 7.7,
        "repetitions": 9,
        "window": 128,
    }
    (root / "gpu").mkdir()
    rows = [row | {"length": length} for length in lengths or (16384,)]
    report = {"hardware": {"device": device}, "speed": rows}
    (root / "gpu" / "report.json").write_text(json.dumps(report))


@pytest.mark.parametrize(
    ("device", "speedup", "expected"),
    [
        ("NVIDIA H100 80GB HBM3", 1.9, REPRODUCED),
        ("NVIDIA H100 80GB HBM3", 4.0, NOT_REPRODUCED),
        ("NVIDIA H200", 1.9, DIRECTION),
    ],
)
def test_a_gpu_report_counts_before_the_cpu(results, settings, device, speedup, expected):
    write_speed(results.root, {"speedup": 0.5})
    gpu_report(results.root, device, speedup)
    outcome = decide(CLAIMS["table6.t16384.speedup_K8"], results, settings)
    assert (outcome.verdict, outcome.evidence) == (expected, "results/gpu/report.json")


@pytest.mark.parametrize(
    ("speeds", "expected", "ours"),
    [
        ((0.5, 2.0), DIRECTION, 16384),
        ((2.0, 3.0), INCONCLUSIVE, 1024),  # other hardware than the paper's refutes nothing
        ((0.3, 0.5), INCONCLUSIVE, None),
    ],
)
def test_crossover(results, settings, speeds, expected, ours):
    rows = [{"length": t, "speedup": s} for t, s in zip((1024, 16384), speeds, strict=True)]
    write_speed(results.root, *rows)
    outcome = decide(CLAIMS["table6.notes.crossover.slowest_context_with_gain"], results, settings)
    assert (outcome.verdict, outcome.ours) == (expected, ours)


@pytest.mark.parametrize(
    ("device", "lengths", "expected"),
    [
        ("NVIDIA H100 80GB HBM3", (1024, 16384), NOT_REPRODUCED),
        ("NVIDIA H100 80GB HBM3", (32768, 65536), INCONCLUSIVE),
        ("NVIDIA H200", (1024, 16384), INCONCLUSIVE),
    ],
)
def test_the_papers_gpu_may_refute_the_crossover(results, settings, device, lengths, expected):
    gpu_report(results.root, device, 2.0, *lengths)
    claim = CLAIMS["table6.notes.crossover.slowest_context_with_gain"]
    assert decide(claim, results, settings).verdict == expected


def test_crossover_is_of_the_papers_groups(results, settings):
    write_speed(results.root, {"length": 1024, "K": 16, "speedup": 2.0},
                {"length": 1024, "speedup": 0.5}, {"length": 4096, "speedup": 2.0})  # fmt: skip
    outcome = decide(CLAIMS["table6.notes.crossover.slowest_context_with_gain"], results, settings)
    assert (outcome.verdict, outcome.ours) == (DIRECTION, 4096)


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


@pytest.mark.parametrize(
    ("sinkhorn", "frozen", "expected"),
    [
        (0.08, 0.0, DIRECTION),
        (0.0, 0.0, NOT_REPRODUCED),
        (0.08, 0.02, NOT_REPRODUCED),
        (0.0011, 0.0, INCONCLUSIVE),
    ],
)
def test_leak(results, settings, sinkhorn, frozen, expected):
    write_leak(results.root, sinkhorn, frozen)
    outcome = decide(CLAIMS["audit.5"], results, settings)
    assert (outcome.verdict, outcome.n) == (expected, 4)


def test_counting(results, settings):
    tables.write(results, results.root / "tables")
    assert verdict("routing_dim.r16.centroid_params", results, settings) == ARITHMETIC
    assert verdict("table4.focus-k2.trained_params", results, settings) == ARITHMETIC
    assert verdict("table1.focus.trained_params", results, settings) == NOT_REPRODUCED
    assert verdict("routing_dim.r16.percent_of_model", results, settings) == INCONCLUSIVE
    assert verdict("table2.notes.llama-2-70b.percent_of_model", results, settings) == ARITHMETIC
    assert verdict("table1.longformer.trained_params", results, settings) is None
    outcome = decide(CLAIMS["table3.focus-r16.trained_params"], results, settings)
    assert outcome.ours == 148224  # 12 * (768 * 16 + 4 * 16)


def test_the_papers_tables_disagree_with_each_other(results, settings):
    tables.write(results, results.root / "tables")
    outcome = decide(CLAIMS["audit.7"], results, settings)
    assert outcome.verdict == ARITHMETIC
    assert "34.2 to 38.4" in outcome.why


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


def test_a_trials_scale_is_its_own(results, settings):
    """Not that of the core stages."""
    trial = {"retrofit": {"steps": 180}, "seeds": [0, 1]}
    core = {
        "seed": 0,
        "protocol": {"context": 1024},
        "retrofit": {"steps": 16},
        "corpus": {"source": "plays"},
    }
    own = {"recipe": {"protocol": {"context": 2048}, "trials": {"prose": trial}}, "scale": "prose"}
    write_recipe(results.root, "prose", {"delta_most": 0.05})
    path = results.root / "recipe" / "prose" / "run.json"
    path.write_text(json.dumps({"stage": "recipe", "cell": "prose", "settings": core | own}))
    outcome = decide(CLAIMS["audit.10"], results, settings)
    assert outcome.scale == "prose; plays; T = 2048; 180 steps; seeds 0, 1"
