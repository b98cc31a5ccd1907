"""The cache of a generation: what is done to it, and what it refuses."""

from __future__ import annotations

import copy

import pytest
import torch
from transformers import DynamicCache, StaticCache

import focus
from focus.cache import FocusCacheLayer, adopt
from tests.models import ARCHITECTURES, token_ids
from tests.stepping import NGRAMS, SETTINGS, TOLERANCE, attached, forced, in_steps

pytestmark = pytest.mark.usefixtures("no_grad")


@pytest.mark.parametrize(("name", "changes"), [
    *(("tiny-llama", changes) for changes in SETTINGS),
    *(("tiny-mistral", changes) for changes in (SETTINGS[0], SETTINGS[-1])),
], ids=str)  # fmt: skip
def test_groups_are_put_off_while_the_window_holds_every_token(name: str, changes: dict) -> None:
    model, ids = attached(name, **changes), token_ids(2, 60) % 11
    expected = forced(model, ids)
    groups = focus.memberships(model)
    for chunks in ([5] + [1] * 20 + [35], [1, 14, 1, 1, 43], [16, 44]):
        assert torch.allclose(in_steps(model, ids, chunks), expected, atol=TOLERANCE)
    last = focus.memberships(model)
    for index, found in groups.items():
        assert torch.equal(found.query[:, :, 16:], last[index].query)
    cache = DynamicCache()
    in_steps(model, ids[:, :7], [6, 1], cache=cache)
    for index, found in focus.memberships(model).items():  # found when asked for
        assert torch.equal(groups[index].of_keys[:, :, 6:7], found.of_keys)


def test_put_off_groups_follow_what_is_done_to_the_cache() -> None:
    model, ids = attached("tiny-llama", routers="key_head"), token_ids(3, 60)
    cache, order = DynamicCache(), torch.tensor([2, 0, 0])
    in_steps(model, ids[:, :9], [6, 3], cache=cache)
    with pytest.raises(ValueError, match="NaN"):
        model(inputs_embeds=torch.full((3, 2, 64), float("nan")), past_key_values=cache)
    cache.crop(-2)
    cache.reorder_cache(order)
    found = in_steps(model, ids[order], [1, 1, 1, 50], cache=cache)
    assert torch.allclose(found, forced(model, ids[order])[:, 7:], atol=TOLERANCE)


def test_padding_that_comes_while_groups_are_put_off() -> None:
    model, ids = attached("tiny-llama", top_k=2, routers="key_head"), token_ids(2, 60)
    mask = torch.ones(2, 60, dtype=torch.long)
    mask[0, 8:] = 0
    found = in_steps(model, ids, [5, 1, 1, 6, *[1] * 20, 27], mask)
    positions = (mask.cumsum(1) - 1).clamp_min(0)
    expected = forced(model, ids, attention_mask=mask, position_ids=positions)
    assert torch.allclose(found[mask.bool()], expected[mask.bool()], atol=TOLERANCE)


class TestCache:
    def filled(self, name: str = "tiny-llama", **changes: object) -> tuple:
        model, ids = attached(name, **changes), token_ids(2, 80)
        cache = DynamicCache(config=model.config)
        in_steps(model, ids, [40, *[1] * 10], cache=cache)
        return model, ids, cache

    def test_continues_as_often_as_one_likes(self) -> None:
        model, ids, cache = self.filled()
        expected = forced(model, ids)[:, 50:]
        other = copy.deepcopy(cache)
        assert cache.get_seq_length() == 50
        for one in (cache, other):
            out = in_steps(model, ids, [7, 1, 22], cache=one)
            assert torch.allclose(out, expected, atol=TOLERANCE)

    @pytest.mark.parametrize(
        ("name", "changes"), [*((name, {}) for name in ARCHITECTURES), ("tiny-llama", NGRAMS)]
    )
    def test_crop_repeat_and_select(self, name: str, changes: dict) -> None:
        model, ids = attached(name, **changes), token_ids(2, 80) % 7
        cache = DynamicCache(config=model.config)
        cache.activate_past_recording()
        in_steps(model, ids, [40, *[1] * 10], cache=cache)
        cache.crop(-17)
        assert cache.get_seq_length() == 33
        cache.batch_repeat_interleave(2)
        cache.batch_select_indices(torch.tensor([3, 0, 1]))
        cache.reorder_cache(torch.tensor([0, 2, 1]))
        rows = torch.tensor([1, 0, 0])
        out = in_steps(model, ids[rows], [1, 1, 20, 1], cache=cache)
        expected = forced(model, ids)[rows, 33:56]
        assert torch.allclose(out, expected, atol=TOLERANCE)

    def test_keys_and_values_are_those_of_transformers(self) -> None:
        model, ids, cache = self.filled()
        with focus.mode(model, "hard", top_k=4):
            plain, grouped = DynamicCache(), DynamicCache()
            in_steps(model, ids, [40, 1, 1], cache=grouped)
        with focus.mode(model, "full"):
            in_steps(model, ids, [40, 1, 1], cache=plain)
        for own, theirs in zip(grouped.layers, plain.layers, strict=True):
            assert isinstance(own, FocusCacheLayer)
            assert torch.allclose(own.keys, theirs.keys, atol=1e-5)
            assert torch.allclose(own.values, theirs.values, atol=1e-5)
        assert all(isinstance(layer, FocusCacheLayer) for layer in cache.layers)

    def test_reset_and_use_in_another_mode(self) -> None:
        model, ids, cache = self.filled()
        cache.reset()
        assert cache.get_seq_length() == 0
        with focus.mode(model, "full"):
            in_steps(model, ids, [40, 1], cache=cache)
        assert not any(isinstance(layer, FocusCacheLayer) for layer in cache.layers)

    def test_a_forward_pass_files_nothing(self) -> None:
        model, ids = attached("tiny-llama"), token_ids(1, 80)
        cache = model(ids).past_key_values
        assert all(layer.past.rows is None for layer in cache.layers)

    @pytest.mark.parametrize("name", ["tiny-llama", "tiny-gemma2"])
    def test_a_cache_of_ones_own(self, name: str) -> None:
        model, ids = attached(name, ngram=2), token_ids(1, 60) % 11
        options = {"max_new_tokens": 12, "min_new_tokens": 12, "do_sample": False}
        expected = model.generate(ids, **options)
        cache = focus.FocusCache(config=model.config)
        assert torch.equal(model.generate(ids, past_key_values=cache, **options), expected)
        if name == "tiny-llama":
            own = model.generate(ids, past_key_values=focus.FocusCache(), **options)
            assert torch.equal(own, expected)
        cache.reset()
        assert torch.equal(model.generate(ids, past_key_values=cache, **options), expected)
        with focus.mode(model, "full"):
            fresh = focus.FocusCache(config=model.config)
            full = model.generate(ids, past_key_values=fresh, **options)
            assert torch.equal(full, model.generate(ids, **options))

    @pytest.mark.parametrize("first", [6, 40])  # within the window, and beyond it
    def test_a_cache_of_inference_mode_goes_on_outside(self, first: int) -> None:
        model, ids = attached("tiny-llama", ngram=2), token_ids(2, 80) % 11
        cache = focus.FocusCache()
        with torch.inference_mode():
            in_steps(model, ids, [first, 1, 1], cache=cache)
        out = in_steps(model, ids, [1, 1, 20], cache=cache)
        expected = forced(model, ids)[:, first + 2 : first + 24]
        assert torch.allclose(out, expected, atol=TOLERANCE)

    def test_a_copy_of_a_short_cache_goes_its_own_way(self) -> None:
        model, ids, cache = attached("tiny-llama"), token_ids(2, 40), focus.FocusCache()
        in_steps(model, ids, [6, 1], cache=cache)
        other = copy.deepcopy(cache)
        out = in_steps(model, ids, [1] * 30, cache=other)
        assert torch.allclose(out, forced(model, ids)[:, 7:37], atol=TOLERANCE)
        assert (cache.get_seq_length(), other.get_seq_length()) == (7, 37)
        cache.crop(-7)
        assert torch.allclose(in_steps(model, ids, [40], cache=cache), forced(model, ids),
                              atol=TOLERANCE)  # fmt: skip

    def test_a_refused_cache_is_told_what_to_use(self) -> None:
        model = attached("tiny-llama")
        for cache in (StaticCache(config=model.config, max_cache_len=64), object()):
            with pytest.raises(ValueError, match=r"focus\.FocusCache"):
                adopt(cache, 0)


class TestErrors:
    ids = token_ids(1, 40)

    def test_sinkhorn_cannot_generate(self) -> None:
        model = attached("tiny-llama", balance="sinkhorn")
        with pytest.raises(ValueError, match="balance='causal'"):
            model.generate(self.ids, max_new_tokens=3)
        model.generate(self.ids, max_new_tokens=3, use_cache=False)
        with focus.mode(model, "hard", balance="causal"):
            model.generate(self.ids, max_new_tokens=3)

    def test_soft_mode_cannot_continue(self) -> None:
        model = attached("tiny-llama")
        with focus.mode(model, "soft"), pytest.raises(ValueError, match="soft mode cannot"):
            model.generate(self.ids, max_new_tokens=3)

    @pytest.mark.parametrize("other", ["soft", "full"])
    def test_a_cache_is_continued_in_its_own_mode(self, other: str) -> None:
        model = attached("tiny-llama")
        hard, cache = DynamicCache(), DynamicCache()
        model(self.ids, past_key_values=hard)
        with focus.mode(model, other):
            with pytest.raises(ValueError, match="filled in hard mode"):
                model(self.ids, past_key_values=hard)
            model(self.ids, past_key_values=cache)
        with pytest.raises(ValueError, match="filled in another mode"):
            model(self.ids, past_key_values=cache)
        focus.detach(model)
        with pytest.raises(ValueError, match="filled in Focus's hard mode"):
            model(self.ids, past_key_values=hard)

    def test_full_mode_does_not_go_on_from_soft_mode(self) -> None:
        model, cache = attached("tiny-llama"), DynamicCache()
        with focus.mode(model, "soft"):
            model(self.ids, past_key_values=cache)
        with focus.mode(model, "full"):
            with pytest.raises(ValueError, match="was filled in soft mode"):
                model(self.ids, past_key_values=cache)
            cache.reset()
            in_steps(model, self.ids, [39, 1], cache=cache)

    def test_other_settings_than_the_cache_was_made_with(self) -> None:
        model, cache = attached("tiny-llama"), DynamicCache()
        model(self.ids, past_key_values=cache)
        told = {
            r"window = 16 where it is 20 now; ": {"window": 20},
            r"balance = 'causal' where it is 'softmax' now; ": {"balance": "softmax"},
            r"key_groups = 1 where it is 2 now; ": {"top_k": 2},
        }
        for message, changes in told.items():
            whole = rf"^past_key_values: the keys in this cache were routed with {message}go on"
            with focus.mode(model, "hard", **changes), pytest.raises(ValueError, match=whole):
                model(self.ids, past_key_values=cache)

    def test_training_mode_and_gradients(self) -> None:
        model, cache = attached("tiny-llama"), DynamicCache()
        model(self.ids, past_key_values=cache)
        kept = model(self.ids[:, :1], past_key_values=cache).logits
        cache.crop(-1)
        model.train()  # as trl's trainers generate
        assert torch.equal(model(self.ids[:, :1], past_key_values=cache).logits, kept)
        for layer in model.model.layers:
            layer.self_attn.attention_dropout = 0.1
        with pytest.raises(ValueError, match=r"model\.eval"):
            model(self.ids, past_key_values=cache)
        model.eval()
        states = torch.randn(1, 4, 64, requires_grad=True)
        with torch.enable_grad(), pytest.raises(ValueError, match="no gradient"):
            model(inputs_embeds=states, past_key_values=cache)

    def test_masks_that_contradict_the_past(self) -> None:
        model, cache = attached("tiny-llama"), DynamicCache()
        mask = torch.ones(1, 41, dtype=torch.long)
        mask[:, :5] = 0
        model(self.ids, past_key_values=cache, attention_mask=mask[:, :40])
        token = self.ids[:, :1]
        for wrong in (None, torch.ones(1, 41), mask.flip(1)):
            with pytest.raises(ValueError, match="attention_mask: says of earlier tokens"):
                model(token, past_key_values=cache, attention_mask=wrong)
        with pytest.raises(ValueError, match="covers 1 tokens where"):
            model(token, past_key_values=cache, attention_mask=mask[:, -1:])
        with pytest.raises(ValueError, match="attention_mask: says of earlier tokens"):
            model(self.ids[:, :2], past_key_values=cache,
                  attention_mask=torch.ones(1, 1, 2, 42, dtype=torch.bool).tril(40))  # fmt: skip
        model(token, past_key_values=cache, attention_mask=mask)

    def test_a_row_without_padding_goes_on_alone(self) -> None:
        model, ids = attached("tiny-llama"), token_ids(2, 60)
        mask = torch.ones(2, 60, dtype=torch.long)
        mask[1, :9] = 0
        cache = focus.FocusCache()
        model(ids[:, :40], past_key_values=cache, attention_mask=mask[:, :40])
        cache.batch_select_indices(torch.tensor([0]))
        found = model(ids[:1, 40:], past_key_values=cache, attention_mask=mask[:1]).logits
        wanted = model(ids[:1], use_cache=False).logits[:, 40:]
        assert torch.allclose(found, wanted, atol=TOLERANCE)

    def test_caches_of_another_kind(self) -> None:
        model = attached("tiny-llama")
        static = StaticCache(config=model.config, max_cache_len=64)
        offloaded = DynamicCache(config=model.config, offloading=False)
        offloaded.offloading = True
        for cache, message in ((static, "StaticLayer"), (offloaded, "offloaded")):
            with pytest.raises(ValueError, match=message):
                model(self.ids, past_key_values=cache)
        with pytest.raises(ValueError, match=r"static|Static"):
            model.generate(self.ids, max_new_tokens=3, cache_implementation="static")

    def test_crop_by_a_positive_number(self) -> None:
        model, cache = attached("tiny-llama"), DynamicCache()
        model(self.ids, past_key_values=cache)
        with pytest.raises(ValueError, match="must be negative"):
            cache.crop(3)

    def test_nan_in_a_step(self) -> None:
        model, cache = attached("tiny-llama"), DynamicCache()
        model(self.ids, past_key_values=cache)
        with pytest.raises(ValueError, match="NaN"):
            model(inputs_embeds=torch.full((1, 1, 64), float("nan")), past_key_values=cache)


def test_a_new_cache_reads_the_routers_as_they_are_then() -> None:
    """A step keeps a router's parameters only as long as its cache goes on."""
    model, ids = attached("tiny-llama", routers="key_head"), token_ids(1, 90)
    in_steps(model, ids, [60, *[1] * 30])
    for router in model.focus_state.routers.values():
        router.centroids.data.add_(torch.randn(router.centroids.shape))
    found, expected = in_steps(model, ids, [60, *[1] * 30]), forced(model, ids)
    assert (found - expected).abs().max() < TOLERANCE
