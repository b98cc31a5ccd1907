"""What groups there are, and what they hold."""

from __future__ import annotations

import numpy as np
import torch

from experiments import trained
from experiments.readings import contents
from experiments.readings.subject import Subject
from experiments.settings import Settings
from experiments.stages import read as stage
from experiments.texts.speech import NAMES
from tests.experiments.readings.test_stage import rows_of


def test_every_layer_of_every_document_has_a_row(workspace: Settings) -> None:
    stage.read("routed", workspace, "groups")
    table = rows_of("groups")
    assert len(table) == 2 * 2 * 2  # seeds, documents, layers
    assert table["largest_group"].between(0.25, 1).all()
    assert table["confidence"].between(0.25, 1).all()
    assert (table["one_plus_cv2"] >= 1).all()


def test_logits_are_the_routers_own(workspace: Settings) -> None:
    subject = Subject(workspace.cell("routed"), 0, workspace.readings["groups"], workspace)
    windows = torch.arange(128).view(2, 64) % 250
    found = [logits for logits, _ in subject.routed(windows)]
    assert [tuple(each.shape[:1] + each.shape[-2:]) for each in found] == [(2, 64, 4)] * 2
    alone = [logits for logits, _ in subject.routed(windows[1:])]
    assert all(torch.allclose(a[1:], b, atol=1e-5) for a, b in zip(found, alone, strict=True))


def test_every_way_to_group_holds_every_token_once(workspace: Settings) -> None:
    stage.read("routed", workspace, "contents")
    table = rows_of("contents")
    keys = ["seed", "document", "layer", "by"]
    assert (table.groupby(keys)["members"].sum() == 64).all()
    assert (table[list(NAMES)].sum(axis=1) == table["members"]).all()
    assert set(table["by"]) == {"groups", "kmeans", "token", "permuted"}
    sizes = {by: sorted(own["members"]) for by, own in table.groupby("by")}
    assert sizes["permuted"] == sizes["groups"]  # the same groups, of other tokens


def test_clusters_are_those_of_the_training_windows(workspace: Settings) -> None:
    subject = Subject(workspace.cell("routed"), 0, workspace.readings["contents"], workspace)
    learnt_on = torch.cat(trained.calibration(subject.cell, 0, workspace))
    (_, known), *_ = contents.states(subject, learnt_on)
    both = contents.nearest(known, known, 4)
    alone = contents.nearest(known[:1], known, 4)
    assert np.array_equal(both[:1], alone)
    assert len(np.unique(both)) == 4


def test_other_ways_are_of_the_same_tokens() -> None:
    ids = torch.tensor([[5, 6, 5, 7]])
    learnt = torch.tensor([[0, 1, 0, 1]])
    ways = contents.ways(learnt, learnt.numpy(), ids, 4)
    assert ways["token"].tolist() == [[1, 2, 1, 3]]
    assert sorted(ways["permuted"][0]) == [0, 0, 1, 1]
    assert ways["groups"].tolist() == learnt.tolist()
