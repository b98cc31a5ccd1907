"""Table 6 and its crossover, on the CPU and on a GPU: each verdict, from crafted result files."""

from __future__ import annotations

import json

import pytest

from analysis.rules import DIRECTION, INCONCLUSIVE, NOT_REPRODUCED, REPRODUCED, decide
from tests.analysis.result_files import write_speed
from tests.analysis.verdicts import CLAIMS, verdict


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
