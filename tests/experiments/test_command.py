"""Command lines of stages: one line where something is wrong, and what measurements share."""

from __future__ import annotations

import json
import runpy
from pathlib import Path
from typing import Any

import pytest
import torch

from experiments import plans
from experiments.command import measure, reported
from experiments.record import Run
from experiments.settings import Settings


@pytest.fixture(autouse=True)
def no_arguments(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of pytest are not the stage's."""
    monkeypatch.setattr("sys.argv", ["stage"])


def test_a_refusal_is_a_line_and_an_exit_status(capsys: pytest.CaptureFixture[str]) -> None:
    @reported("stage")
    def root(number: float) -> None:
        """Words."""
        if number < 0:
            raise ValueError("number: is below zero")
        print(number**0.5)

    assert root(4.0) == 0
    assert capsys.readouterr() == ("2.0\n", "")
    assert root(number=-1.0) == 1
    assert capsys.readouterr() == ("", "stage: number: is below zero\n")

    @reported("params.yaml")
    def read() -> None:
        raise ValueError("params.yaml: cannot be read")

    assert read() == 1
    assert capsys.readouterr().err == "params.yaml: cannot be read\n"  # once
    assert (root.__name__, root.__doc__) == ("root", "Words.")


@pytest.mark.filterwarnings("ignore:.*found in sys.modules:RuntimeWarning")
@pytest.mark.parametrize("name", plans.MEASUREMENTS)
def test_a_measurement_names_the_field_that_is_wrong(
    work: Any, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    work()
    text = Path("params.yaml").read_text()
    Path("params.yaml").write_text(text.replace("threads: 2", "threads: 0"))
    with pytest.raises(SystemExit) as ended:
        runpy.run_module(f"experiments.stages.{name}", run_name="__main__")
    assert ended.value.code == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"{name}: threads: Input should be greater than or equal to 1")


@pytest.mark.parametrize(("name", "dtype"), [("speed", "float32"), ("decode", None)])
def test_a_measurement_is_recorded(work: Any, name: str, dtype: str | None) -> None:
    chosen = work()

    def measurement(run: Run, given: Settings) -> None:
        assert given == chosen
        run.note("threads", torch.get_num_threads())

    assert measure(name, measurement) == 0
    told = json.loads(Path(f"results/laptop/{name}/run.json").read_text())
    assert told["settings"] == plans.measurement(name, chosen)
    assert (told["seeds"], told["dtype"]) == ([chosen.seed], dtype)
    assert told["notes"] == {"threads": chosen.threads}
