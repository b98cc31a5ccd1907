"""N-grams matched word for word: against a definition by hand, and in every way to generate."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import torch
from transformers import DynamicCache

import focus
from focus import FocusConfig
from focus.ngrams import NgramIndex, keys_after_ngrams, ranks_by_sorting
from tests.models import tiny, token_ids
from tests.stepping import NGRAMS, TOLERANCE, attached, forced, in_steps

pytestmark = pytest.mark.usefixtures("no_grad")


def repeating(batch: int = 2, tokens: int = 80) -> torch.Tensor:
    """Few different ids, so that bigrams come again."""
    return token_ids(batch, tokens) % 7


def by_hand(row: list[int], real: list[bool], i: int, longest: int, window: int) -> list[int]:
    """Keys after an earlier reading of what ends at i, from their definition."""
    found: list[int] = []
    for order in range(longest, 0, -1):
        asked = range(i - order + 1, i + 1)
        if asked[0] < 0 or not all(real[at] for at in asked):
            continue
        after = [
            j
            for j in range(i - window, order - 1, -1)
            if all(real[j - order : j + 1]) and row[j - order : j] == [row[at] for at in asked]
        ]
        found += after[:3]
    return ([*dict.fromkeys(found)] + [-1] * 3)[:3]


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("window", [1, 5, 40])
@pytest.mark.parametrize("longest", [1, 2, 3])
def test_keys_are_those_after_the_longest_earlier_readings(
    longest: int, window: int, padded: bool
) -> None:
    ids, real = repeating() % 4, torch.ones(2, 80, dtype=torch.bool)
    real[0, :17] = real[1, 70:] = not padded
    found = keys_after_ngrams(ids, longest, 3, window, 80, real if padded else None)
    for b in range(2):
        for i in range(80):
            expected = by_hand(ids[b].tolist(), real[b].tolist(), i, longest, window)
            assert found[b, i].tolist() == expected
    assert (found >= 0).any()


@pytest.mark.parametrize("queries", [1, 7, 20])
def test_the_last_tokens_find_what_they_find_among_all(queries: int) -> None:
    ids, real = repeating() % 4, torch.ones(2, 80, dtype=torch.bool)
    real[0, :17] = False
    whole = keys_after_ngrams(ids, 3, 4, 5, 80, real)
    for tokens in (20, 30, 63, 80):
        own = keys_after_ngrams(ids[:, :tokens], 3, 4, 5, queries, real[:, :tokens])
        assert torch.equal(own, whole[:, tokens - queries : tokens])


def test_groups_stay_as_they_are() -> None:
    model, ids = attached("tiny-llama"), repeating(1)
    model(ids)
    before, pairs = focus.memberships(model), focus.pair_counts(model)
    with focus.mode(model, "hard", **NGRAMS):
        model(ids)
        for index, (query, key) in focus.memberships(model).items():
            assert torch.equal(query, before[index].query)
            assert key is None or torch.equal(key, before[index].key)
            counts, without = focus.pair_counts(model)[index], pairs[index]
            assert without.distant_kept < counts.distant_kept
            most = without.distant_kept + 3 * 80 * focus.memberships(model)[0].query.shape[1]
            assert counts.distant_kept <= most
            assert counts[:3] == without[:3]


def test_a_copied_passage_is_seen_again() -> None:
    """Each of its tokens but the first meets the one that came next in the passage."""
    model = focus.attach(tiny("tiny-llama"), FocusConfig(num_groups=40, window=4, sinks=0), seed=0)
    ids = token_ids(1, 200)
    ids[:, 150:170] = ids[:, 20:40]
    for ngram in (0, 2):
        with focus.mode(model, "hard", ngram=ngram):
            model(ids)
        found = model.focus_state.last.further
        if ngram:
            for i in range(150, 169):  # by its bigram, or by itself
                assert i - 129 in found[0, i].tolist()
        else:
            assert found is None


@pytest.mark.parametrize("backend", ["auto", "stripes"])
def test_fast_paths_are_the_definition(backend: str) -> None:
    model, ids = attached("tiny-llama", routers="key_head", **NGRAMS), repeating()
    expected = forced(model, ids)
    with focus.mode(model, "hard", backend=backend):
        assert torch.allclose(model(ids, use_cache=False).logits, expected, atol=TOLERANCE)


def test_ids_may_be_of_any_integer_type() -> None:
    model, ids = attached("tiny-llama", **NGRAMS), repeating(2)
    mask = torch.ones_like(ids)
    mask[0, :3] = 0
    for tokens in (8, ids.shape[1]):  # within the window, and beyond
        one, other = (model(each[:, :tokens], attention_mask=mask[:, :tokens]).logits
                      for each in (ids, ids.int()))  # fmt: skip
        assert torch.equal(one, other)


def test_a_cache_goes_on_with_the_same_ngrams() -> None:
    model, cache, ids = attached("tiny-llama", **NGRAMS), DynamicCache(), repeating(1)
    model(ids, past_key_values=cache)
    with focus.mode(model, "hard", ngram=0), pytest.raises(ValueError, match="routed"):
        model(ids[:, :1], past_key_values=cache)
    with focus.mode(model, "hard", ngram=1, ngram_keys=2):  # what is looked for may change
        model(ids[:, :1], past_key_values=cache)


def test_a_step_that_failed_leaves_the_cache_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    model, cache, ids = attached("tiny-llama", **NGRAMS), DynamicCache(), repeating(1)
    in_steps(model, ids, [40], cache=cache)
    with monkeypatch.context() as broken:
        broken.setattr("focus.interface.decode_attention", lambda *_, **__: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            model(ids[:, 40:45], past_key_values=cache)
    cache.layers[0].expected = False
    out = in_steps(model, ids, [20, 1], cache=cache)
    assert torch.allclose(out, forced(model, ids)[:, 40:61], atol=TOLERANCE)


def test_ngrams_are_looked_for_once_for_all_layers(monkeypatch: pytest.MonkeyPatch) -> None:
    model, ids, calls = attached("tiny-llama", **NGRAMS), repeating(1), []
    extend = NgramIndex.extend
    monkeypatch.setattr(NgramIndex, "extend", lambda *x: calls.append(x) or extend(*x))
    assert len(model.focus_state.layers) > 1
    in_steps(model, ids, [40, 1])
    assert len(calls) == 2


class TestIndex:
    """What is found step by step is what the whole text says."""

    @pytest.mark.parametrize("padded", [False, True])
    @pytest.mark.parametrize("window", [1, 5, 40])
    @pytest.mark.parametrize("longest", [1, 2, 3])
    @pytest.mark.parametrize("chunks", [[80], [1] * 80, [30, 1, 3, 8, 20, 1, 1, 16]])
    def test_all_at_once_or_in_parts(self, chunks: list[int], longest: int, window: int,
                                     padded: bool) -> None:  # fmt: skip
        ids, real = repeating() % 4, torch.ones(2, 80, dtype=torch.bool)
        real[0, :17] = real[1, 70:] = real[1, 30:33] = not padded
        expected = keys_after_ngrams(ids, longest, 3, window, 80, real)
        index, stop = NgramIndex(), 0
        for count in chunks:
            start, stop = stop, stop + count
            own = real[:, start:stop] if padded else None
            found = index.extend(ids[:, start:stop], own, longest, 3, window)
            assert torch.equal(found, expected[:, start:stop])

    @pytest.mark.parametrize("padded", [False, True])
    def test_crop_and_select(self, padded: bool) -> None:
        ids, real = repeating() % 4, torch.ones(2, 80, dtype=torch.bool)
        real[0, :17] = real[1, 40:43] = not padded
        expected = keys_after_ngrams(ids, 3, 3, 5, 80, real)
        for left in (0, 1, 20, 41, 49):
            index = NgramIndex()
            for start, stop in ((0, 30), *((t, t + 1) for t in range(30, 50))):
                own = real[:, start:stop] if padded else None
                index.extend(ids[:, start:stop].flip(1) if start == 49 else ids[:, start:stop],
                             own, 3, 3, 5)  # fmt: skip
            index.crop(left)
            rows = torch.tensor([1, 0, 1])
            if left:
                index.select(rows)
            own_ids, own_real = (ids[rows], real[rows]) if left else (ids, real)
            for t in range(left, 80):
                mask = own_real[:, t : t + 1] if padded else None
                found = index.extend(own_ids[:, t : t + 1], mask, 3, 3, 5)
                assert torch.equal(found, (expected[rows] if left else expected)[:, t : t + 1])

    def test_nothing_is_looked_up_while_the_window_holds_every_token(self) -> None:
        ids, index = token_ids(1, 12).fill_(3), NgramIndex()
        steps = [index.extend(ids[:, i : i + 1], None, 3, 2, 10) for i in range(12)]
        assert torch.equal(torch.cat(steps, 1), keys_after_ngrams(ids, 3, 2, 10, 12))
        assert all(bool((step == -1).all()) for step in steps[:11])
        assert steps[11].tolist() == [[[1, -1]]]

    def test_longer_ngrams_than_before_and_copies(self) -> None:
        ids = repeating() % 4
        index = NgramIndex()
        for t in range(40):
            index.extend(ids[:, t : t + 1], None, 1, 2, 5)
        other = copy.deepcopy(index)
        for each in (index, other):
            found = each.extend(ids[:, 40:41], None, 3, 4, 5)
            assert torch.equal(found, keys_after_ngrams(ids[:, :41], 3, 4, 5, 1))


def test_without_ids_there_is_nothing_to_match() -> None:
    model, ids = attached("tiny-llama", **NGRAMS), repeating(1)
    states = model.get_input_embeddings()(ids)
    with pytest.raises(ValueError, match=r"ngram: .*pass input_ids instead of inputs_embeds"):
        model(inputs_embeds=states)
    with focus.mode(model, "hard", ngram=0):
        assert model(inputs_embeds=states).logits.shape[:2] == ids.shape
    assert model(ids).logits.shape[:2] == ids.shape


def test_an_adapter_keeps_them(tmp_path: Path) -> None:
    model, ids = attached("tiny-llama", **NGRAMS), repeating(1)
    focus.save_adapter(model, tmp_path)
    other = focus.load_adapter(tiny("tiny-llama"), tmp_path)
    assert other.focus_state.config.ngram == 2
    assert torch.equal(other(ids).logits, model(ids).logits)


@pytest.mark.parametrize(
    ("changes", "message"),
    [({"ngram": -1}, "ngram: must be >= 0"), ({"ngram_keys": 0}, "ngram_keys: must be >= 1")],
)
def test_nonsense_is_refused(changes: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        FocusConfig(**changes)


def test_a_deep_copy_looks_at_its_own_ids() -> None:
    model, ids = attached("tiny-llama", **NGRAMS), repeating()
    expected = forced(model, ids)
    forced(model, ids.flip(1))
    assert torch.equal(forced(copy.deepcopy(model), ids), expected)


@pytest.mark.parametrize("high", [1, 3, 1000])
def test_ranks_by_sorting_are_those_of_unique(high: int) -> None:
    drawn = torch.randint(0, high, (2, 57), generator=torch.Generator().manual_seed(0))
    assert torch.equal(ranks_by_sorting(drawn), torch.unique(drawn, return_inverse=True)[1])
