"""Which of our runs stands for the paper's setup of four groups."""

from __future__ import annotations

from pathlib import Path

from analysis.results import Results
from analysis.rules.table7 import paper_way
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
