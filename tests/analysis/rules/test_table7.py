"""Which of our runs stands for the paper's setup of four groups, and for its training gate."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

from analysis.paper import claims
from analysis.results import Results
from analysis.rules.table7 import gate_of_all_steps, paper_way
from tests.analysis.result_files import (
    PAPER,
    ROUTERS,
    losses,
    write_paper,
    write_pretrained,
    write_read,
)

LONG = ROUTERS | {"steps": 4000}


def write_rate(root: Path, cell: str, rate: float, chosen_on: float, change: float) -> None:
    """One rate of a block of the paper's steps: the gate's loss on validation documents, and the
    hard mask's on test documents."""
    regime = LONG | {"learning_rate": rate}
    write_read(root, "paper_steps", losses("soft", change=chosen_on), cell=cell, method=PAPER,
               regime=regime, reading="short_search", against=["pretrained"],
               final=False)  # fmt: skip
    write_paper(root, {2: change}, block="paper_steps", cell=cell, regime=regime)


def test_as_many_steps_as_the_papers_come_first(tmp_path: Path) -> None:
    results = Results(tmp_path)
    write_pretrained(results.root)
    write_paper(results.root, {2: 0.3})
    assert paper_way(results, 2)["cell"] == "paper"
    write_rate(results.root, "slow", 0.001, 0.1, 0.2)
    assert paper_way(Results(tmp_path), 2)["cell"] == "slow"


def test_a_rate_is_chosen_on_validation_documents(tmp_path: Path) -> None:
    results = Results(tmp_path)
    write_pretrained(results.root)
    write_rate(results.root, "slow", 0.001, chosen_on=0.1, change=0.0)
    write_rate(results.root, "fast", 0.01, chosen_on=0.0, change=0.2)
    row = paper_way(results, 2)
    assert (row["cell"], row["reading"]) == ("fast", "final")


@pytest.mark.parametrize(("steps", "expected"), [(4000, "paper"), (24, "short")])
def test_the_gate_is_taken_from_a_run_of_all_steps(tmp_path: Path, steps: int,
                                                   expected: str) -> None:  # fmt: skip
    (claim,) = (each for each in claims() if each.id == "routing_dim.r16.ppl")
    results, regime = Results(tmp_path), ROUTERS | {"steps": steps}
    write_pretrained(results.root)
    write_paper(results.root, {2: 0.3}, regime=regime)
    write_read(results.root, "paper", losses("soft", change=-0.1), method=PAPER, regime=regime,
               against=["pretrained"])  # fmt: skip
    row = gate_of_all_steps(claim, results, pd.Series({"cell": "short"}))
    assert row["cell"] == expected
