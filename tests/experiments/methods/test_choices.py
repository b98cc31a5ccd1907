"""What each method makes of a budget: windows, numbers of groups, heaviest keys."""

from __future__ import annotations

import pytest
import torch

import focus
from experiments import registry
from experiments.methods import position, token, window
from experiments.methods.base import built, groups_within
from experiments.methods.passes import Pass, watched
from experiments.methods.random import balance, kept
from focus.density import count_pairs
from tests.experiments.methods.reference import near_pairs, words
from tests.models import tiny, token_ids


@pytest.mark.parametrize("share", [0.01, 0.125, 0.3, 1.0])
@pytest.mark.parametrize(("tokens", "near", "sinks"), [(60, 8, 2), (200, 1, 0), (97, 32, 4)])
def test_a_window_is_the_smallest_that_keeps_the_share(
    tokens: int, near: int, sinks: int, share: float
) -> None:
    own = near_pairs(tokens, near, sinks)
    distant = int((~own).tril().sum())
    assert window.beyond(tokens, near, sinks) == distant
    found = window.widened(tokens, near, sinks, share)

    def more(width: int) -> float:
        return int((near_pairs(tokens, width, sinks) & ~own).sum()) / distant

    assert more(found) >= share > more(found - 1)


def test_a_text_within_the_window_is_left_alone() -> None:
    assert window.widened(100, 128, 4, 0.5) == 128
    assert position.groups_keeping(100, 128, 4, 0.5) == 64


@pytest.mark.parametrize("share", [1 / 16, 0.125, 0.3, 0.9])
def test_positions_get_the_most_groups_that_keep_the_share(share: float) -> None:
    tokens, near, sinks = 150, 16, 3
    far = ~near_pairs(tokens, near, sinks) & torch.ones(tokens, tokens, dtype=torch.bool).tril()
    distance = torch.arange(tokens)[:, None] - torch.arange(tokens)[None, :]

    def share_of(groups: int) -> float:
        return int((far & (distance % groups == 0)).sum()) / int(far.sum())

    found = position.groups_keeping(tokens, near, sinks, share)
    assert share_of(found) >= share
    assert all(share_of(more) < share for more in range(found + 1, 65))


def test_token_groups_are_counted_pair_by_pair() -> None:
    ids, groups = words(1, 90), 7
    own = torch.tensor([(int(n) * 2_654_435_761 % 2**32) // 2**16 % groups for n in ids[0]])
    met = sum(int(own[i] == own[j]) for i in range(90) for j in range(2, i - 7))
    assert token._kept(ids, groups, 8, 2) == met
    assert token._kept(ids[:, :8], groups, 8, 2) == 0


def test_token_groups_are_the_most_that_keep_the_share() -> None:
    windows = [words(1, 200), token_ids(1, 200)]
    found = token.groups_keeping(windows, 8, 4, 0.2)

    def share_of(groups: int) -> float:
        kept = sum(token._kept(each, groups, 8, 4) for each in windows)
        return kept / (2 * window.beyond(200, 8, 4))

    assert share_of(found) >= 0.2
    assert all(share_of(more) < 0.2 for more in range(found + 1, 65))
    assert found > position.groups_keeping(200, 8, 4, 0.2)  # words gather: groups are uneven


@pytest.mark.parametrize("kind", ["token", "random"])
def test_without_training_windows_nothing_can_be_chosen(kind: str) -> None:
    model, method = tiny("tiny-llama"), built(registry.find("method", kind), {"window": 8}, seed=0)
    method.install(model)
    with (
        pytest.raises(ValueError, match=r"^calibrate: .* need"),
        method.applied(model, 0.25),
        torch.no_grad(),
    ):
        model(words(1, 60), use_cache=False)
    with pytest.raises(ValueError, match="of more than 12 tokens"):
        token.groups_keeping([words(1, 12)], 8, 4, 0.25)


def test_random_routers_find_the_potentials_that_training_would_find() -> None:
    """Without a graph, and once a window."""
    config = focus.FocusConfig.recipe(num_groups=5, window=8, sinks=2, ngram=0)
    windows = [token_ids(1, 64), token_ids(1, 64, seed=1)]
    wanted = focus.attach(tiny("tiny-llama"), config, seed=0).train()
    with focus.mode(wanted, "soft"):
        for each in windows:
            wanted(each, use_cache=False)
    model = focus.attach(tiny("tiny-llama"), config, seed=0).eval()
    balance(model, windows)
    for one, two in zip(model.focus_state.routers.values(), wanted.focus_state.routers.values(),
                        strict=True):  # fmt: skip
        assert int(one.batches) == 2
        assert not one.training
        torch.testing.assert_close(one.potentials, two.potentials)
        assert one.potentials.abs().max() > 0


@pytest.mark.parametrize(("budget", "top_k"), [(0.0625, 1), (0.125, 2), (0.25, 4), (0.02, 1)])
def test_random_routers_take_as_many_groups_as_trained_ones(budget: float, top_k: int) -> None:
    fields = {"window": 16, "ngram": 0}
    model, method = tiny("tiny-llama"), built(registry.find("method", "random"), fields, seed=0)
    method.install(model)
    windows = [words(1, 300), token_ids(1, 300)]
    method.calibrate(model, windows)
    with method.applied(model, budget), torch.no_grad():
        assert kept(model, windows) >= budget
        model(windows[0], use_cache=False)
        found = focus.memberships(model)
    told = method.describe(budget)
    assert (told["top_k"], told["probe"], told["balance"]) == (top_k, "multi_probe", "causal")
    assert 0.8 * top_k / budget <= told["K"] <= top_k / budget
    assert all((each.query.sum(-1) == top_k).all() for each in found.values())
    assert all((each.of_keys.sum(-1) == 1).all() for each in found.values())


def test_another_seed_draws_other_routers() -> None:
    windows, found = [words(1, 200)], []
    for seed in (0, 0, 1):
        model = tiny("tiny-llama")
        method = built(registry.find("method", "random"), {"window": 16}, seed)
        method.install(model)
        method.calibrate(model, windows)
        with method.applied(model, 0.25), torch.no_grad():
            found.append(model(windows[0], use_cache=False).logits)
    assert torch.equal(found[0], found[1])
    assert not torch.allclose(found[0], found[2])


SHARES = [(0.29, 100, 29), (0.25, 18, 4), (0.0625, 16, 1), (0.06, 16, 0), (1.0, 2, 2)]


@pytest.mark.parametrize(("share", "groups", "most"), SHARES)
def test_groups_within_a_share(share: float, groups: int, most: int) -> None:
    assert groups_within(share, groups) == most


def test_an_oracle_of_padded_texts_is_refused() -> None:
    model = tiny("tiny-llama")
    method = built(registry.find("method", "oracle_heads"), {"window": 8}, seed=0)
    method.install(model)
    mask = torch.ones(1, 20, dtype=torch.int64)
    mask[0, :3] = 0
    with method.applied(model, 0.5), pytest.raises(ValueError, match=r"^oracle_heads: .*padding"):
        model(token_ids(1, 20), attention_mask=mask, use_cache=False)


@pytest.mark.parametrize("kind", ["window", "position"])
def test_a_share_of_pairs_that_the_model_itself_leaves_out_is_refused(kind: str) -> None:
    model = tiny("tiny-mistral")
    method = built(registry.find("method", kind), {"window": 8}, seed=0)
    method.install(model)
    with method.applied(model, 0.5), torch.no_grad():
        model(token_ids(1, 32), use_cache=False)
        with pytest.raises(ValueError, match=r"a sliding window of 32 tokens of its own"):
            model(token_ids(1, 60), use_cache=False)


def test_pairs_are_those_of_the_library_with_padding_and_with_a_cache() -> None:
    real = torch.ones(2, 50, dtype=torch.bool)
    real[0, :7] = False
    nobody = torch.zeros(2, 1, 50, 1, dtype=torch.bool)
    found = Pass(real, 50, None).pairs(8, 3)
    assert found == count_pairs(nobody, None, 8, 3, real)
    first, then = Pass(real[:, :49], 49, None).pairs(8, 3), Pass(real, 1, None).pairs(8, 3)
    assert tuple(a + b for a, b in zip(first, then, strict=True)) == tuple(found)


@pytest.mark.parametrize("kind", ["tiny-llama", "tiny-gpt2"])
def test_a_pass_is_told_before_it_runs(kind: str) -> None:
    model, ids = tiny(kind), token_ids(2, 30)
    told: list[Pass] = []
    with watched(model, told.append) as last, torch.no_grad():
        with pytest.raises(RuntimeError, match="no forward pass"):
            last()
        cache = model(ids).past_key_values
        model(ids[:, :1], past_key_values=cache)
        assert [(each.tokens, each.new, each.past) for each in told] == [(30, 30, 0), (31, 1, 30)]
        model(inputs_embeds=model.get_input_embeddings()(ids), use_cache=False)
        assert last().ids is None
        assert last().tokens == 30
