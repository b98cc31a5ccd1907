"""What groups tell of a token."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.metrics import adjusted_mutual_info_score

from experiments.methods.base import MOST_GROUPS
from experiments.readings import contents, information
from experiments.readings.subject import Subject
from experiments.settings import Settings
from experiments.stages import read as stage
from tests.experiments.readings.test_stage import rows_of


def test_rows_hold_the_groups_and_what_they_tell(workspace: Settings) -> None:
    stage.read("routed", workspace, "information")
    table = rows_of("information")
    assert len(table) == 2 * 2 * 2  # seeds, documents, layers
    assert set(table["groups"].str.len()) == {64}
    assert (table[["speech", "token", "position", "frequency"]] <= 1).all(axis=None)


def test_kept_groups_are_the_routers_own(workspace: Settings) -> None:
    subject = Subject(workspace.cell("routed"), 0, workspace.readings["information"], workspace)
    rows = information.rows(subject, workspace.readings["information"], "letters")
    ids = torch.cat([windows[:1] for _, windows in subject.documents("letters")])
    (groups, _), *_ = contents.states(subject, ids)
    first = rows[0]
    assert [information.LETTERS.index(each) for each in first["groups"]] == groups[0].tolist()
    assert first["token"] == adjusted_mutual_info_score(ids[0].numpy(), groups[0].numpy())


def test_every_group_has_a_letter_of_its_own() -> None:
    assert len(set(information.LETTERS)) == len(information.LETTERS) > MOST_GROUPS
    assert information.LETTERS.isalpha()


def test_labels_are_of_the_token_and_of_its_place(workspace: Settings) -> None:
    subject = Subject(workspace.cell("routed"), 0, workspace.readings["information"], workspace)
    ids = np.array([9, 9, 30, 30, 60, 60, 90, 90, 9, 9, 30, 30, 60, 60, 90, 90])
    known = information.labels(subject, ids)
    assert known["position"].tolist() == [n // 2 for n in range(16)]
    assert (known["token"] == ids).all()
    assert adjusted_mutual_info_score(known["frequency"], ids) == pytest.approx(1)
