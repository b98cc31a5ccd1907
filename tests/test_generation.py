"""Generation in hard mode through transformers' own cache, against the teacher-forced run."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from transformers import DynamicCache, GenerationConfig

import focus
from focus.attention import decode
from focus.groups import Memberships
from focus.routing import Router
from tests.models import ARCHITECTURES, build, tiny, token_ids
from tests.stepping import CONFIG, NGRAMS, SETTINGS, TOLERANCE, attached, forced, in_steps

pytestmark = pytest.mark.usefixtures("no_grad")

# What a model adds to a step is its own window and soft-cap; the rest is the same for all.
STEPPED = [
    *((name, changes) for name in ("tiny-llama", "tiny-mistral") for changes in SETTINGS),
    *((name, changes) for name in ARCHITECTURES for changes in (SETTINGS[0], SETTINGS[-1])
      if name not in ("tiny-llama", "tiny-mistral")),
]  # fmt: skip


@pytest.mark.parametrize(("name", "changes"), STEPPED, ids=str)
def test_step_logits_are_those_of_the_whole_sequence(name: str, changes: dict) -> None:
    model, ids = attached(name, **changes), token_ids(2, 90) % 11  # n-grams come again
    expected = forced(model, ids)
    for chunks in ([60] + [1] * 30, [20, 30, 1, 1, 38]):
        assert torch.allclose(in_steps(model, ids, chunks), expected, atol=TOLERANCE)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_steps_under_autocast_are_those_of_the_whole_sequence(dtype: torch.dtype) -> None:
    model, ids = attached("tiny-llama", ngram=2), token_ids(2, 90) % 11
    with torch.autocast("cpu", dtype):
        expected, found = forced(model, ids).float(), in_steps(model, ids, [60, 1, 1, 28]).float()
    assert torch.allclose(found, expected, atol=0.03 * float(expected.abs().max()))
    assert not torch.equal(expected, forced(model, ids))


@pytest.mark.parametrize("name", ["tiny-llama", "tiny-mistral"])
@pytest.mark.parametrize("changes", [{}, {"heavy_hitters": 0.1}, {"ngram": 2}])
@pytest.mark.parametrize("compiled", [True, False])
def test_queries_may_look_into_more_groups_later(
    monkeypatch: pytest.MonkeyPatch, name: str, changes: dict, compiled: bool
) -> None:
    if not compiled:
        monkeypatch.setattr(decode.step, "computes", lambda query: False)
    model = attached(name, probe="multi_probe", routers="query_head", **changes)
    ids, cache, found = token_ids(2, 90) % 11, focus.FocusCache(), []
    top_ks = {(0, 10): 4, (10, 40): 1, (40, 60): 4, (60, 61): 2, (61, 70): 4, (70, 90): 1}
    for (start, stop), top_k in top_ks.items():
        with focus.mode(model, "hard", top_k=top_k):
            found.append(model(ids[:, start:stop], past_key_values=cache).logits)

    def by_token(router: Router, args: tuple, kwargs: dict, found: Memberships) -> Memberships:
        query = found.query.clone()
        for (start, stop), top_k in top_ks.items():
            config = kwargs["mask"].replace(top_k=top_k)
            own = router.forward(*args, **{**kwargs, "mask": config})
            query[:, :, start:stop] = own.query[:, :, start:stop]
        return Memberships(query, found.key)

    for router in model.focus_state.routers.values():
        router.register_forward_hook(by_token, with_kwargs=True)
    assert torch.allclose(torch.cat(found, 1), forced(model, ids), atol=TOLERANCE)


@pytest.mark.parametrize("name", ["tiny-mistral", "tiny-gemma2"])
@pytest.mark.parametrize("padded", [False, True])
def test_a_models_own_window_and_softcap(name: str, padded: bool) -> None:
    model, ids = attached(name, top_k=2, routers="key_head"), token_ids(2, 90)
    mask = torch.ones(2, 90, dtype=torch.long)
    if padded:
        mask[0, :13] = 0
    expected = forced(model, ids, attention_mask=mask)
    whole = focus.pair_counts(model)
    out = model(ids, attention_mask=mask, use_cache=False).logits
    assert torch.allclose(out[mask.bool()], expected[mask.bool()], atol=TOLERANCE)
    assert focus.pair_counts(model) == whole


def test_density_of_steps_adds_up_to_the_whole() -> None:
    model, ids = attached("tiny-llama", routers="key_head"), token_ids(2, 90)
    forced(model, ids)
    whole = focus.pair_counts(model)
    cache = DynamicCache()
    found = []
    for start, stop in [(0, 60), (60, 70), *((t, t + 1) for t in range(70, 90))]:
        model(ids[:, start:stop], past_key_values=cache)
        found.append(focus.pair_counts(model))
    for index, counts in whole.items():
        assert counts == tuple(sum(step[index][i] for step in found) for i in range(4))


@pytest.mark.parametrize(
    ("name", "changes"), [*((name, {}) for name in ARCHITECTURES), ("tiny-llama", NGRAMS)]
)
def test_left_padded_batches(name: str, changes: dict) -> None:
    model, ids = attached(name, **changes), token_ids(3, 80) % 11
    mask = torch.ones(3, 80, dtype=torch.long)
    mask[0, :23], mask[1, :5] = 0, 0
    positions = (mask.cumsum(1) - 1).clamp_min(0)
    expected = forced(model, ids, attention_mask=mask, position_ids=positions)
    for chunks in ([50] + [1] * 30, [10, 40, 1, 1, 28]):
        out = in_steps(model, ids, chunks, mask)
        assert torch.allclose(out[mask.bool()], expected[mask.bool()], atol=TOLERANCE)


def test_padding_between_the_turns_of_a_conversation() -> None:
    model, ids = attached("tiny-llama"), token_ids(2, 80)
    mask = torch.ones(2, 80, dtype=torch.long)
    mask[0, 30:41] = 0
    with pytest.raises(ValueError, match="padding between real tokens"):
        in_steps(model, ids, [30, 20, *[1] * 30], mask)
    ids[0, :41] = ids[0, :41].roll(11)  # as the error says: before the text
    mask[0, :41] = mask[0, :41].roll(11)
    positions = (mask.cumsum(1) - 1).clamp_min(0)
    expected = forced(model, ids, attention_mask=mask, position_ids=positions)
    out = in_steps(model, ids, [30, 20, *[1] * 30], mask)
    assert torch.allclose(out[mask.bool()], expected[mask.bool()], atol=TOLERANCE)
    alone = forced(model, ids[:1, 11:])
    assert torch.allclose(expected[0, 11:], alone[0], atol=TOLERANCE)


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_greedy_is_the_same_without_a_cache(name: str) -> None:
    model, ids = attached(name), token_ids(1, 200)
    options = {"max_new_tokens": 20, "min_new_tokens": 20, "do_sample": False}
    cached = model.generate(ids, **options)
    assert cached.shape == (1, 220)
    assert torch.equal(cached, model.generate(ids, use_cache=False, **options))


def test_greedy_256_tokens_from_a_long_prompt() -> None:
    model, ids = attached("tiny-llama", routers="key_head"), token_ids(1, 1000)
    out = model.generate(ids, max_new_tokens=256, min_new_tokens=256, do_sample=False)
    # Token by token is what the whole sequence predicts: the same as generating without a cache.
    predicted = forced(model, out)[:, 999:-1].argmax(-1)
    assert torch.equal(out[:, 1000:], predicted)


@pytest.mark.parametrize(
    "options",
    [
        {"do_sample": True, "top_k": 20},
        {"do_sample": False, "num_beams": 3, "num_return_sequences": 2},
        {"do_sample": True, "num_beams": 2},
        {"do_sample": False, "prefill_chunk_size": 17},
        {"do_sample": False, "prompt_lookup_num_tokens": 4},
    ],
    ids=["sampling", "beams", "beam-sampling", "chunked-prefill", "prompt-lookup"],
)
@pytest.mark.parametrize(("name", "changes"), [
    ("tiny-llama", {}), ("tiny-llama", NGRAMS), ("tiny-mistral", {}), ("tiny-gemma2", NGRAMS),
])  # fmt: skip
def test_other_ways_to_generate(name: str, changes: dict, options: dict) -> None:
    model, ids = attached(name, **changes), token_ids(1, 60).repeat(1, 2)
    options = {**options, "max_new_tokens": 20, "min_new_tokens": 20}
    if "prompt_lookup_num_tokens" not in options:
        ids = torch.cat([ids, token_ids(1, 120, seed=4) % 7])
    alone = ("prefill_chunk_size", "prompt_lookup_num_tokens")  # with a cache
    plain = {key: value for key, value in options.items() if key not in alone}
    torch.manual_seed(0)
    out = model.generate(ids, **options)
    torch.manual_seed(0)
    assert torch.equal(out, model.generate(ids, use_cache=False, **plain))


@pytest.mark.parametrize("changes", [{}, NGRAMS])
def test_generate_pads_a_batch_on_the_left(changes: dict) -> None:
    model, ids = attached("tiny-llama", **changes), token_ids(2, 60) % 7
    mask = torch.ones(2, 60, dtype=torch.long)
    mask[0, :25] = 0
    options = {"max_new_tokens": 30, "min_new_tokens": 30, "do_sample": False}
    out = model.generate(ids, attention_mask=mask, **options)
    for row, start in ((0, 25), (1, 0)):
        alone = model.generate(ids[row : row + 1, start:], **options)
        assert torch.equal(out[row : row + 1, start:], alone)


@pytest.mark.parametrize("name", ARCHITECTURES)
@pytest.mark.parametrize("padded", [False, True])
def test_full_mode_with_a_static_cache_is_the_pretrained_model(name: str, padded: bool) -> None:
    model, ids = tiny(name), token_ids(2, 50)
    mask = torch.ones_like(ids)
    mask[0, : 9 * padded] = 0

    def generated() -> Tensor:
        out = model.generate(ids, attention_mask=mask, max_new_tokens=6, min_new_tokens=6,
                             do_sample=False, return_dict_in_generate=True, output_logits=True,
                             cache_implementation="static")  # fmt: skip
        return torch.stack(out.logits)

    model.requires_grad_(False)
    wanted = generated()
    focus.attach(model, CONFIG, seed=0)
    with focus.mode(model, "full"):
        assert torch.allclose(generated(), wanted, atol=1e-6)


@pytest.mark.parametrize("mode", ["hard", "full"])
def test_a_model_that_drops_queries_itself(mode: str) -> None:
    model = focus.attach(build("gemma4"), CONFIG, seed=0)  # ahead of layers that share keys
    ids = token_ids(2, 60)
    with focus.mode(model, mode):
        whole = model(ids, use_cache=False).logits
        for kept in (1, 5, torch.tensor([3, 7])):
            for use_cache in (True, False):
                found = model(ids, logits_to_keep=kept, use_cache=use_cache).logits
                wanted = whole[:, -kept:] if isinstance(kept, int) else whole[:, kept]
                assert torch.allclose(found, wanted, atol=TOLERANCE)
        model.generate(ids, max_new_tokens=3, do_sample=False)


def test_full_mode_generates_as_the_pretrained_model() -> None:
    ids = token_ids(2, 60)
    options = {"max_new_tokens": 30, "min_new_tokens": 30, "do_sample": False}
    for name in ARCHITECTURES:
        model = tiny(name)
        expected = model.generate(ids, **options)
        focus.attach(model, CONFIG, seed=0)
        with focus.mode(model, "full"):
            assert torch.equal(model.generate(ids, **options), expected)


def test_generation_config_of_the_model_is_left_alone() -> None:
    model = attached("tiny-llama")
    before = model.generation_config.to_dict()
    model.generate(token_ids(1, 30), GenerationConfig(max_new_tokens=2))
    assert model.generation_config.to_dict() == before
