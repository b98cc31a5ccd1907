"""What of the GPU harness needs no GPU: its budget, its reading of nvidia-smi, its whole course."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import pytest
import torch

from experiments.kernels.timing import Shape
from tests.gpu import checks, library, run, speed


def test_budget_refuses_what_does_not_fit() -> None:
    now = [100.0]
    budget = run.Budget(60, clock=lambda: now[0])
    assert budget.allows(60)
    now[0] = 130.0
    assert budget.left == pytest.approx(30)
    assert not budget.allows(31)


def test_nvidia_smi_is_read_and_may_be_silent() -> None:
    line = "NVIDIA H100, 550.54, 1980 MHz, 2619 MHz, 1980 MHz, 2619 MHz, 700.00 W\n"
    found = run.read_smi(line)
    assert found["driver"] == "550.54"
    assert found["clocks"]["clocks.sm"] == "1980 MHz"
    assert run.read_smi("") == {"driver": None, "clocks": None}


def test_guess_grows_with_the_square_of_the_length() -> None:
    shape = Shape(4096, 32, 8, 128, 128, torch.bfloat16, torch.device("cuda"))
    row = {"heads": 32, "length": 1024, "direction": "forward", "median_s": 0.5}
    assert speed.guess_seconds([row], shape, False) == pytest.approx(3 * 0.5 * 16)
    assert speed.guess_seconds([row], shape, True) == 0.0
    assert speed.guess_seconds([], shape, False) == 0.0


def test_checks_cover_every_path_and_feature() -> None:
    cases = list(checks.checks())
    ways = {"triton:dense", "triton:lists"}
    assert {case.backend for case in cases} == {"triton", "varlen", "auto", "stripes"} | ways
    assert {case.dim for case in cases} >= {64, 128}
    assert any(case.padding == "left" for case in cases)
    assert any(case.key_top_k for case in cases)
    assert any(case.sinks for case in cases)
    further = {case.backend for case in cases if case.extra}
    assert further == {"triton", "triton:lists", "varlen", "stripes"}


def test_a_kernel_that_fails_is_a_failed_check() -> None:
    row = checks.run_check(checks.Check(groups=0), torch.device("cpu"))
    assert not row["passed"]
    assert "Error" in row["error"]


def test_rehearsal_on_cpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(speed, "SHAPES", ((4, 2, 16),))
    few = [checks.Check("varlen", tokens=63), checks.Check("stripes", 40)]
    monkeypatch.setattr(checks, "checks", lambda: iter(few))
    one = partial(library.check_training, library.PAPER, torch.device("cpu"))
    monkeypatch.setattr(library, "every", lambda device: [one])
    status = run.main(["--device", "cpu", "--longest", "1024", "--out", str(tmp_path)])
    (path,) = tmp_path.glob("*.json")
    report = json.loads(path.read_text())
    assert status == 0
    assert report["rehearsal"]
    assert report["finished"]
    assert all(row["passed"] for row in report["checks"])
    assert {row["method"] for row in report["speed"]} == {"full", "ours", "paper_k1"}
    assert {"device", "length", "speedup", "bound", "kernel", "tflops"} <= set(report["speed"][0])


def test_without_a_gpu_it_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    if torch.cuda.is_available():
        pytest.skip("there is a GPU here")
    assert run.main([]) == 2
    assert "--device cpu" in capsys.readouterr().err
