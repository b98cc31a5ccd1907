"""N-grams matched word for word: against a definition by hand, and in every way to generate."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import DynamicCache

import focus
from focus import FocusConfig
from focus.ngrams import ngram_groups
from tests.models import tiny, token_ids
from tests.test_generation import (  # noqa: F401 - the fixture makes pages small
    TOLERANCE,
    attached,
    forced,
    in_steps,
    small_pages,
)

NGRAMS = {"ngram": 2, "ngram_groups": 5}


def repeating(batch: int = 2, tokens: int = 80) -> torch.Tensor:
    """Few different ids, so that bigrams come again."""
    return token_ids(batch, tokens) % 7


@pytest.mark.parametrize("order", [1, 2, 3])
def test_equal_ngrams_meet_wherever_they_stand(order: int) -> None:
    ids = repeating()
    ended = ngram_groups(ids, order, 1000)
    assert ended.shape == (2, 81)
    for row, groups in zip(ids.tolist(), ended.tolist(), strict=True):
        padded = [None] * order + row
        grams = [tuple(padded[at : at + order]) for at in range(81)]
        for i in range(81):
            for j in range(81):
                assert (grams[i] == grams[j]) == (groups[i] == groups[j])  # no collision in 1,000


def test_other_ngrams_spread_evenly() -> None:
    ended = ngram_groups(torch.randint(0, 49_152, (1, 20_000)), 2, 46)
    shares = torch.bincount(ended[0], minlength=46) / ended.numel()
    assert shares.max() < 1.3 / 46
    assert shares.min() > 0.7 / 46


def test_padding_is_as_if_nothing_stood_there() -> None:
    ids, real = repeating(1), torch.ones(1, 80, dtype=torch.bool)
    real[:, :30] = False
    ended = ngram_groups(ids, 2, 50, real)
    assert torch.equal(ended[:, 30:], ngram_groups(ids[:, 30:], 2, 50))


@torch.no_grad()
def test_a_query_meets_the_keys_after_earlier_readings() -> None:
    model = focus.attach(tiny("tiny-llama"), FocusConfig(num_groups=4, window=8), seed=0)
    ids = repeating(1)
    model(ids)
    before = focus.memberships(model)
    with focus.mode(model, "hard", ngram=2, ngram_groups=40):
        model(ids)
        found = focus.memberships(model)
    row = ids[0].tolist()
    for index, (query, key) in found.items():
        assert torch.equal(query[..., :4], before[index].query)
        assert (query.sum(-1) == 2).all()
        assert (key.sum(-1) == 2).all()
        meets = (query[0, 0, :, 4:].int() @ key[0, 0, :, 4:].int().T).bool()
        for i in range(2, 80):
            for j in range(2, i):
                if row[i - 1 : i + 1] == row[j - 2 : j]:
                    assert meets[i, j]
        assert meets.tril().float().mean() < 0.2


@torch.no_grad()
def test_a_copied_passage_is_seen_again() -> None:
    """Nothing but the n-gram can tell: one key in forty groups, far beyond the window."""
    model = focus.attach(tiny("tiny-llama"), FocusConfig(num_groups=8, window=4, sinks=0), seed=0)
    ids = token_ids(1, 200)
    ids[:, 150:170] = ids[:, 20:40]
    with focus.mode(model, "hard", ngram=2, ngram_groups=40):
        model(ids)
        query, key = focus.memberships(model)[0]
    looked, joined = query[0, 0, :, 8:], key[0, 0, :, 8:]
    for i in range(151, 169):  # the passage's second token on: its bigram stood there before
        assert (looked[i] & joined[i - 129]).any()


@torch.no_grad()
@pytest.mark.parametrize("backend", ["auto", "decomposed"])
def test_fast_paths_are_the_definition(backend: str) -> None:
    model, ids = attached("tiny-llama", routers="kv_head", sides="two", **NGRAMS), repeating()
    expected = forced(model, ids)
    with focus.mode(model, "hard", backend=backend):
        assert torch.allclose(model(ids, use_cache=False).logits, expected, atol=TOLERANCE)


@torch.no_grad()
def test_a_suffix_changes_nothing_before_it() -> None:
    model, ids = attached("tiny-llama", **NGRAMS), repeating(1)
    other = ids.clone()
    other[:, 50:] = 9
    logits, groups = [], []
    for each in (ids, other):
        logits.append(forced(model, each)[:, :50])
        groups.append(focus.memberships(model)[0])
    assert torch.equal(*logits)
    assert torch.equal(groups[0].query[:, :, :50], groups[1].query[:, :, :50])
    assert torch.equal(groups[0].key[:, :, :50], groups[1].key[:, :, :50])


@pytest.mark.parametrize(
    "options",
    [
        {"do_sample": False},
        {"do_sample": False, "num_beams": 3, "num_return_sequences": 2},
        {"do_sample": False, "prefill_chunk_size": 17},
        {"do_sample": False, "prompt_lookup_num_tokens": 4},
    ],
    ids=["greedy", "beams", "chunked-prefill", "prompt-lookup"],
)
@pytest.mark.parametrize("name", ["tiny-llama", "tiny-gemma2"])
def test_generation_is_the_same_without_a_cache(name: str, options: dict) -> None:
    model, ids = attached(name, **NGRAMS), repeating(1, 120)
    options = {**options, "max_new_tokens": 20, "min_new_tokens": 20}
    plain = {k: v for k, v in options.items() if k not in ("prefill_chunk_size",
                                                           "prompt_lookup_num_tokens")}  # fmt: skip
    out = model.generate(ids, **options)
    assert torch.equal(out, model.generate(ids, use_cache=False, **plain))


def test_left_padded_batches() -> None:
    model, ids = attached("tiny-llama", **NGRAMS), repeating(3)
    mask = torch.ones(3, 80, dtype=torch.long)
    mask[0, :23], mask[1, :5] = 0, 0
    positions = (mask.cumsum(1) - 1).clamp_min(0)
    expected = forced(model, ids, attention_mask=mask, position_ids=positions)
    for chunks in ([50] + [1] * 30, [10, 40, 1, 1, 28]):
        out = in_steps(model, ids, chunks, mask)
        assert torch.allclose(out[mask.bool()], expected[mask.bool()], atol=TOLERANCE)
    options = {"max_new_tokens": 10, "min_new_tokens": 10, "do_sample": False}
    out = model.generate(ids, attention_mask=mask, **options)
    assert torch.equal(out[:1, 23:], model.generate(ids[:1, 23:], **options))


def test_crop_repeat_and_select() -> None:
    model, ids = attached("tiny-llama", **NGRAMS), repeating()
    cache = DynamicCache(config=model.config)
    cache.activate_past_recording()
    in_steps(model, ids, [40, *[1] * 10], cache=cache)
    cache.crop(-17)
    cache.batch_repeat_interleave(2)
    cache.batch_select_indices(torch.tensor([3, 0, 1]))
    cache.reorder_cache(torch.tensor([0, 2, 1]))
    rows = torch.tensor([1, 0, 0])
    out = in_steps(model, ids[rows], [1, 1, 20, 1], cache=cache)
    assert torch.allclose(out, forced(model, ids)[rows, 33:56], atol=TOLERANCE)


def test_a_cache_goes_on_with_the_same_ngrams() -> None:
    model, cache, ids = attached("tiny-llama", **NGRAMS), DynamicCache(), repeating(1)
    model(ids, past_key_values=cache)
    for changes in ({"ngram": 1}, {"ngram_groups": 6}, {"ngram": 0}):
        with focus.mode(model, "hard", **changes), pytest.raises(ValueError, match="routed"):
            model(ids[:, :1], past_key_values=cache)


def test_a_step_that_failed_leaves_the_cache_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    model, cache, ids = attached("tiny-llama", **NGRAMS), DynamicCache(), repeating(1)
    in_steps(model, ids, [40], cache=cache)
    with monkeypatch.context() as broken:
        broken.setattr("focus.forward.decode_attention", lambda *_, **__: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            model(ids[:, 40:45], past_key_values=cache)
    cache.layers[0].expected = False
    out = in_steps(model, ids, [20, 1], cache=cache)
    assert torch.allclose(out, forced(model, ids)[:, 40:61], atol=TOLERANCE)


def test_ngrams_are_hashed_once_for_all_layers(monkeypatch: pytest.MonkeyPatch) -> None:
    model, ids, calls = attached("tiny-llama", **NGRAMS), repeating(1), []

    def counted(*arguments: object) -> torch.Tensor:
        calls.append(arguments)
        return ngram_groups(*arguments)

    monkeypatch.setattr("focus.forward.ngram_groups", counted)
    assert len(model.focus_state.layers) > 1
    in_steps(model, ids, [40, 1])
    assert len(calls) == 2


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
    [({"ngram": -1}, "ngram: must be >= 0"), ({"ngram_groups": 1}, "ngram_groups: must be >= 2")],
)
def test_nonsense_is_refused(changes: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        FocusConfig(**changes)
