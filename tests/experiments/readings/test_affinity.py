"""Whether words that belong together share a group more often than random pairs do."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from experiments.readings import affinity
from experiments.settings import Settings
from experiments.stages import read as stage
from experiments.texts import links
from focus import Memberships
from tests.experiments.readings.test_stage import rows_of


def test_pairs_that_look_into_the_keys_group_are_shared() -> None:
    query = torch.zeros(1, 2, 4, 2, dtype=torch.bool)
    query[0, 0, :, 0] = query[0, 1, :, 1] = True
    key = torch.tensor([[[[True, False], [False, True], [True, False], [True, False]]]])
    members = Memberships(query, key)
    assert affinity.shared(members, np.array([[3, 0], [3, 1]])) == 0.5
    assert affinity.shared(members, np.array([[3, 0], [3, 2]])) == 0.5  # of one of two heads
    alike = Memberships(key, None)
    assert affinity.shared(alike, np.array([[3, 0], [3, 1]])) == 0.5


def test_rows_are_of_the_links_that_there_are(
    workspace: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = {"name": [links.Found("a", 2), links.Found("a", 40)], "time": [], "word": []}
    monkeypatch.setattr(links, "found", lambda tokenizer, ids: words)
    stage.read("routed", workspace, "affinity")
    table = rows_of("affinity")
    assert len(table) == 2 * 2 * 2 * 2 * 2  # seeds, budgets, documents, windows, layers
    assert set(table["link"]) == {"name"}
    assert (table["pairs"] == 1).all()
    assert table["chance"].between(0, 1).all()
