"""Rules in the place of trained routers, brought to the density of these."""

import pytest
import torch
from torch import Tensor

import focus
from experiments.controls import calibrate, controlled, groups_keeping, ruled_pairs
from experiments.recipe_settings import Reading
from focus.density import PairCounts
from tests.models import tiny, token_ids

READINGS = [Reading(1), Reading(2), Reading(2, "multi_probe"), Reading(1, ngram=2),
            Reading(2, "multi_probe", ngram=2)]  # fmt: skip


def config(reading: Reading) -> focus.FocusConfig:
    return focus.FocusConfig(
        num_groups=5, window=8, sinks=2, routers="query_head", **reading.mask
    )  # fmt: skip


def skewed(windows: int, tokens: int) -> Tensor:
    """Ids of which a few make up most of a text, as words do."""
    drawn = torch.rand(windows, tokens, generator=torch.Generator().manual_seed(3))
    return (250 * drawn**4).long()


@pytest.mark.parametrize("reading", READINGS, ids=lambda each: each.name)
@pytest.mark.parametrize("kind", ["position", "token"])
def test_what_a_rule_keeps_is_known_without_the_model(kind: str, reading: Reading) -> None:
    model, own = tiny("tiny-llama"), config(reading)
    focus.attach(model, own, seed=0).eval()
    ids = skewed(2, 60)
    known = ruled_pairs(kind, own.replace(num_groups=7), ids)
    trained = model.focus_state.routers
    with (
        torch.no_grad(),
        controlled(model, kind, [], 0, num_groups=7),
        focus.mode(model, "hard", balance="causal"),
    ):
        model(ids, use_cache=False)
        assert set(focus.pair_counts(model).values()) == {known}
    assert model.focus_state.config == own
    assert model.focus_state.routers == trained


@pytest.mark.parametrize("kind", ["position", "token"])
def test_what_a_rule_keeps_is_counted_pair_by_pair(kind: str) -> None:
    ids, groups = skewed(1, 60), 7
    numbers = torch.arange(60)
    if kind == "token":
        numbers = torch.tensor([(int(n) * 2_654_435_761 % 2**32) // 2**16 for n in ids[0]])
    own = numbers % groups
    met = sum(
        int(own[j]) in (int(own[i]), (int(own[i]) + 1) % groups)  # two groups a query, one a key
        for i in range(60) for j in range(2, i - 7)
    )  # fmt: skip
    found = ruled_pairs(kind, config(READINGS[2]).replace(num_groups=groups), ids)
    assert found.distant_kept == met
    assert found.distant == sum(max(0, i - 7 - 2) for i in range(60))


@pytest.mark.parametrize("reading", READINGS, ids=lambda each: each.name)
@pytest.mark.parametrize("kind", ["position", "token"])
def test_a_rule_gets_as_many_groups_as_keep_the_pairs_asked_for(
    kind: str, reading: Reading
) -> None:
    texts, own, share = [skewed(2, 90), token_ids(1, 90)], config(reading), 0.3
    groups = groups_keeping(share, kind, own, texts)
    assert own.top_k + own.key_top_k < groups < 60
    assert kept(kind, own, groups, texts) >= share
    assert all(kept(kind, own, groups + more, texts) < share for more in range(1, 5))


def kept(kind: str, own: focus.FocusConfig, groups: int, texts: list[Tensor]) -> float:
    counts = [ruled_pairs(kind, own.replace(num_groups=groups), each) for each in texts]
    return PairCounts.total(counts).distant_density


def test_groups_stay_within_what_there_is() -> None:
    texts, own = [skewed(1, 200)], config(READINGS[2])
    assert groups_keeping(0.0, "token", own, texts) == 64
    assert groups_keeping(1.0, "position", own, texts) == 3  # below, nothing would be masked


def test_groups_by_token_identity_keep_more_than_balanced_ones() -> None:
    """For which they get more groups: as many as random routers have would be too dense."""
    own, texts = config(READINGS[0]), [skewed(2, 200)]
    assert kept("token", own, 8, texts) > 1.2 * kept("position", own, 8, texts)
    more = groups_keeping(0.2, "token", own, texts), groups_keeping(0.2, "position", own, texts)
    assert more[0] > more[1]


def test_random_routers_find_the_potentials_that_training_would_find() -> None:
    """Without a graph, and once a window."""
    windows = [token_ids(1, 64), token_ids(1, 64, seed=1)]
    wanted = focus.attach(tiny("tiny-llama"), config(READINGS[2]), seed=0).train()
    with focus.mode(wanted, "soft"):
        for window in windows:
            wanted(window, use_cache=False)
    model = focus.attach(tiny("tiny-llama"), config(READINGS[2]), seed=0).eval()
    calibrate(model, windows)
    for one, two in zip(model.focus_state.routers.values(), wanted.focus_state.routers.values(),
                        strict=True):  # fmt: skip
        assert int(one.batches) == 2
        assert not one.training
        torch.testing.assert_close(one.potentials, two.potentials)
        assert one.potentials.abs().max() > 0
