"""Whether groups keep the pairs that copying needs; which keys a head sees."""

from __future__ import annotations

import pytest
import torch

import focus
from experiments import trained
from experiments.readings import copying, information
from experiments.readings.induction import Pairs, attended, measures, together
from experiments.readings.subject import Subject
from experiments.settings import Settings
from experiments.stages import read as stage
from focus import Memberships
from tests.experiments.readings.test_stage import rows_of


def test_a_query_is_paired_with_the_token_that_it_predicts() -> None:
    ids = torch.arange(60)
    how = copying.Copying(texts=("any",), context=50, passage=10, lead=2, distances=(15,))
    (window,), _ = copying.windows(ids, how)
    pairs = Pairs(first=42, total=50, apart=15)
    assert torch.equal(window[pairs.queries + 1], window[pairs.keys])
    assert pairs.queries.tolist() == list(range(41, 49))


def test_rows_are_of_each_layer_and_of_all(workspace: Settings) -> None:
    stage.read("routed", workspace, "induction")
    table = rows_of("induction")
    assert len(table) == 2 * 2 * 2 * 2 * 3  # seeds, budgets, documents, distances, layers and all
    assert set(table["layer"]) == {"all", "0", "1"}
    assert table[["shared", "chance", "weight", "weight_shared", "by_word"]].max(axis=None) <= 1
    stage.read("routed", workspace, "copying")
    copied = rows_of("copying").query("condition == 'hard'").astype({"budget": float})
    whole = table[table["layer"] == "all"]
    key = ["seed", "budget", "document"]
    both = whole.merge(copied, left_on=[*key, "apart"], right_on=[*key, "distance"])
    assert both["nll_x"].to_numpy() == pytest.approx(both["nll_y"].to_numpy(), rel=1e-5)
    assert both["full_nll"].notna().all()


def test_weights_are_full_attentions(workspace: Settings) -> None:
    model = trained.build(workspace.cell("routed"), 0, workspace).model
    window = torch.arange(96) % 7 + 3
    pairs = Pairs(first=82, total=96, apart=32)
    weights, losses = attended(model, window, pairs)
    assert weights.shape == (2, model.config.num_attention_heads, 14)
    with focus.mode(model, "full"), torch.no_grad():
        logits = model(window[None], use_cache=False).logits[0, 81:-1]
    wanted = torch.nn.functional.cross_entropy(logits, window[82:], reduction="none")
    assert torch.allclose(losses, wanted, atol=1e-4)
    assert float(weights.sum(-1).max()) <= 14


def test_heads_share_a_key_heads_groups() -> None:
    query = torch.zeros(1, 4, 3, 2, dtype=torch.bool)
    query[0, :2, :, 0] = query[0, 2:, :, 1] = True
    key = torch.zeros(1, 2, 3, 2, dtype=torch.bool)
    key[0, :, 0, 0] = key[0, :, 1:, 1] = True
    same = together(Memberships(query, key), torch.tensor([2]))
    assert same[:, 0].tolist() == [[True, False, False]] * 2 + [[False, True, True]] * 2


def test_tokens_are_parted_by_the_weight_that_groups_miss() -> None:
    weights = torch.tensor([[[1.0, 1.0, 1.0, 1.0], [3.0, 3.0, 3.0, 3.0]]])
    shared = torch.tensor([[[1.0, 1.0, 1.0, 0.0], [1.0, 0.0, 1.0, 0.0]]])
    own = measures(weights, shared, torch.full_like(shared, 0.25), torch.tensor([1.0, 5, 2, 7]))
    assert own["shared"] == pytest.approx(5 / 8)
    assert own["weight_shared"] == pytest.approx((3 + 6) / 16)
    assert own["weight_chance"] == own["chance"] == 0.25
    assert (own["missed_nats"], own["met_nats"]) == (6, 1.5)


def test_a_picture_is_the_heads_mask_in_letters(workspace: Settings) -> None:
    stage.read("routed", workspace, "picture")
    table = rows_of("picture")
    assert len(table) == 2 * 2 * 2 * 2  # seeds, budgets, documents, layers
    row = table[(table["seed"] == 0) & (table["budget"] == 0.5)].iloc[0]
    subject = Subject(workspace.cell("routed"), 0, workspace.readings["picture"], workspace)
    (_, (ids,)), *_ = subject.documents("letters")
    with torch.no_grad(), focus.mode(subject.model, "hard", top_k=2, probe="multi_probe"):
        subject.model(ids[None], use_cache=False)
        members = focus.memberships(subject.model)[row["layer"]]
    for letters, own, count in (("queries", members.query, 2), ("keys", members.of_keys, 1)):
        found = [information.LETTERS.index(each) for each in row[letters]]
        wanted = [set(token.nonzero().flatten().tolist()) for token in own[0, 0]]
        assert [set(found[n : n + count]) for n in range(0, len(found), count)] == wanted
    assert row["further"].count(";") == row["tokens"] - 1
