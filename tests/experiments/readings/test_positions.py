"""Loss by position, and how even groups are there."""

from __future__ import annotations

import pytest
import torch

from experiments.readings import positions
from experiments.readings.subject import Subject, parts
from experiments.settings import Settings
from experiments.stages import read as stage
from tests.experiments.readings.test_stage import rows_of


def test_stretches_of_a_document_are_its_whole_loss(workspace: Settings) -> None:
    stage.read("routed", workspace, "search")
    stage.read("routed", workspace, "positions")
    keys = ["seed", "budget", "document"]
    whole, parts = rows_of("search"), rows_of("positions")
    whole = whole[whole["condition"] == "hard"].astype({"budget": float}).set_index(keys)
    assert set(parts["condition"]) == {"hard"}
    assert sorted(set(parts["position"])) == [0, 24, 48]
    together = parts.groupby(keys)[["nll", "tokens"]].sum()
    assert (together["tokens"] == 63).all()
    assert together["nll"].to_dict() == pytest.approx(whole["nll"].to_dict())


def test_groups_are_compared_with_the_first_stretch(workspace: Settings) -> None:
    stage.read("routed", workspace, "positions")
    table = rows_of("positions")
    assert (table.loc[table["position"] == 0, "moved"] == 0).all()
    assert table["moved"].between(0, 100).all()
    assert (table.loc[table["position"] > 0, "moved"] > 0).any()
    assert table["largest"].between(25, 100).all()


def test_shares_that_move_are_counted_by_hand() -> None:
    shares = torch.tensor([[[0.5, 0.5], [0.9, 0.1]], [[1.0, 0.0], [1.0, 0.0]]])
    found = positions.evenness(shares, 1)
    assert found["largest"] == pytest.approx(95)
    assert found["moved"] == pytest.approx(20)


def test_what_has_no_groups_has_losses_alone(workspace: Settings) -> None:
    cell, reading = workspace.cell("untrained"), workspace.readings["positions"]
    subject = Subject(cell, 0, reading, workspace)
    ((_, part), *_) = parts(positions, subject, reading)
    assert all("moved" not in row and row["nll"] > 0 for row in part())
