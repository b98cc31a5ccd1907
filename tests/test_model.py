import contextvars
import copy
import gc
import pickle
import warnings
import weakref
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from peft import LoraConfig, get_peft_model
from transformers import BertConfig, BertModel

import focus
from focus import FocusConfig
from tests.attention.cases import needs_kernel
from tests.models import ARCHITECTURES, tiny, token_ids

CONFIG = FocusConfig(num_groups=4, top_k=1, window=16, sinks=2)
# GPT-2 takes absolute positions, so left padding moves its tokens even in the pretrained model.
RELATIVE = [name for name in ARCHITECTURES if name != "tiny-gpt2"]


@pytest.fixture(params=ARCHITECTURES)
def name(request: pytest.FixtureRequest) -> str:
    return request.param


def logits(model: torch.nn.Module, ids: torch.Tensor, **kwargs: object) -> torch.Tensor:
    with torch.no_grad():
        return model(ids, use_cache=False, **kwargs).logits


def test_full_mode_and_detach_are_the_pretrained_model_bit_for_bit(name: str) -> None:
    model, ids = tiny(name), token_ids(2, 90)
    before = copy.deepcopy(model.state_dict())
    reference = logits(model, ids)
    focus.attach(model, CONFIG, seed=0)
    assert not torch.equal(logits(model, ids), reference)
    with focus.mode(model, "full"):
        assert torch.equal(logits(model, ids), reference)
    focus.detach(model)
    assert torch.equal(logits(model, ids), reference)
    after = model.state_dict()
    assert list(before) == list(after)
    assert all(torch.equal(before[key], after[key]) for key in before)
    assert all(p.requires_grad for p in model.parameters())


@pytest.mark.parametrize("changes", [{"num_groups": 1}, {"top_k": 3}, {"window": 90}])
@pytest.mark.parametrize("mode", ["hard", "soft"])
def test_limit_cases_are_full_attention(name: str, changes: dict, mode: str) -> None:
    if mode == "soft" and "top_k" in changes:
        pytest.skip("top_k does not enter the soft gate")
    model, ids = tiny(name), token_ids(2, 90)
    reference = logits(model, ids)
    focus.attach(model, CONFIG.replace(**changes), seed=0)
    with focus.mode(model, mode):
        assert torch.allclose(logits(model, ids), reference, atol=2e-5)
    if name != "tiny-mistral":  # whose own window removes pairs
        assert all(share == 1.0 for share in focus.density(model).values())


@pytest.mark.parametrize("name", RELATIVE)
@pytest.mark.parametrize("mode", ["hard", "soft"])
@pytest.mark.parametrize("balance", ["sinkhorn", "causal"])
def test_padded_batches_equal_single_sequences(name: str, mode: str, balance: str) -> None:
    model, ids = tiny(name), token_ids(2, 90)
    changes = {"routers": "key_head", "balance": balance}
    focus.attach(model, CONFIG.replace(**changes), seed=0)
    mask = torch.ones(2, 90, dtype=torch.long)
    mask[0, :13], mask[1, -9:] = 0, 0
    with focus.mode(model, mode):
        batch = logits(model, ids, attention_mask=mask)
        for row, span in ((0, slice(13, None)), (1, slice(0, -9))):
            alone = logits(model, ids[row : row + 1, span])
            assert torch.allclose(batch[row : row + 1, span], alone, atol=2e-5)


def test_gemma2_local_layers_stay_as_they_are() -> None:
    model = focus.attach(tiny("tiny-gemma2"), CONFIG, seed=0)
    local, routed = model.model.layers[0].self_attn, model.model.layers[1].self_attn
    assert not hasattr(local, "focus_router")
    assert hasattr(routed, "focus_router")
    logits(model, token_ids(1, 90))
    assert list(focus.density(model)) == [1]


def test_mistrals_own_sliding_window_still_holds() -> None:
    ids = token_ids(1, 90)
    model = tiny("tiny-mistral", sliding_window=20)
    focus.attach(model, CONFIG.replace(sinks=0), seed=0)
    changed = ids.clone()
    changed[:, :40] = 7
    # Two layers see at most 2 * 19 tokens back.
    assert torch.equal(logits(model, ids)[:, 80:], logits(model, changed)[:, 80:])


def test_training_moves_routers_and_no_weight(name: str) -> None:
    model, ids = tiny(name), token_ids(1, 60)
    before = {n: p.detach().clone() for n, p in model.named_parameters()}
    focus.attach(model, CONFIG, seed=0).train()
    parameters = list(focus.trainable_parameters(model))
    assert {id(p) for p in parameters} == {id(p) for p in model.parameters() if p.requires_grad}
    optimizer = torch.optim.AdamW(parameters, lr=1e-2)
    start = [p.detach().clone() for p in parameters]
    with focus.mode(model, "soft"):
        for _ in range(2):
            model(ids, labels=ids).loss.backward()
            optimizer.step()
    assert all(not torch.equal(a, b) for a, b in zip(start, parameters, strict=True))
    own = dict(model.named_parameters())
    assert all(torch.equal(before[n], own[n]) for n in before)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_mask_that_keeps_all_is_the_pretrained_model(name: str, dtype: torch.dtype) -> None:
    """Two 3-subsets of 4 groups meet: not one logit may change (the identity of Table 7)."""
    model, ids = tiny(name).to(dtype), token_ids(2, 60)
    before = logits(model, ids)
    focus.attach(model, CONFIG.replace(top_k=3), seed=0)
    if name in ("tiny-gemma2", "tiny-mistral"):  # a soft-cap, a window of their own: to rounding
        close = 1e-5 if dtype == torch.float32 else 2e-2
        torch.testing.assert_close(logits(model, ids), before, rtol=0, atol=close)
    else:
        assert torch.equal(logits(model, ids), before)


def test_a_training_step_in_evaluation_mode_is_told() -> None:
    model, ids = focus.attach(tiny("tiny-llama").eval(), CONFIG, seed=0), token_ids(1, 60)
    with focus.mode(model, "soft"):
        with pytest.warns(UserWarning, match=r"call model.train\(\)"):
            model(ids)
        with warnings.catch_warnings(), torch.no_grad():
            warnings.simplefilter("error")
            model(ids)
        model.train()
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            model(ids)


def test_density_is_of_the_last_forward() -> None:
    model = focus.attach(tiny("tiny-llama"), CONFIG, seed=0)
    with pytest.raises(ValueError, match="no forward pass"):
        focus.density(model)
    logits(model, token_ids(1, 90))
    hard = focus.density(model)
    assert all(0 < share < 1 for share in hard.values())
    with focus.mode(model, "hard", top_k=2):
        logits(model, token_ids(1, 90))
        assert all(focus.density(model)[i] > hard[i] for i in hard)
    with focus.mode(model, "full"):
        logits(model, token_ids(1, 90))
    assert set(focus.density(model).values()) == {1.0}


def test_causal_balance_keeps_the_prefix_whatever_follows(name: str) -> None:
    model = focus.attach(tiny(name), CONFIG.replace(routers="key_head"), seed=0)
    ids = token_ids(1, 90)
    other = torch.cat([ids[:, :50], token_ids(1, 40, seed=5)], 1)
    with focus.mode(model, "hard", backend="dense"):
        one = logits(model, ids)
        groups = focus.memberships(model)
        two = logits(model, other)
    for index, found in focus.memberships(model).items():
        assert torch.equal(found.query[..., :50, :], groups[index].query[..., :50, :])
    assert torch.equal(one[:, :50], two[:, :50])


SUFFIX_CONFIGS = {
    "several probes": CONFIG.replace(top_k=2, probe="multi_probe", routers="key_head"),
    "recipe": focus.FocusConfig.recipe(window=8, sinks=2, ngram_keys=2),
}


@pytest.mark.parametrize("config", SUFFIX_CONFIGS.values(), ids=SUFFIX_CONFIGS)
@pytest.mark.parametrize(
    "backend", ["dense", pytest.param("native", marks=needs_kernel), "stripes", "auto"]
)
def test_no_path_lets_a_suffix_change_the_past(backend: str, config: focus.FocusConfig) -> None:
    """Bit for bit by the definition, to rounding otherwise; words that come again included."""
    model, ids = focus.attach(tiny("tiny-llama"), config, seed=0), token_ids(2, 120)
    for router in model.focus_state.routers.values():
        router.potentials.normal_(generator=torch.Generator().manual_seed(1)).mul_(0.1)
    ids[:, 60:80] = ids[:, 10:30]
    other = torch.cat([ids[:, :80], token_ids(2, 40, seed=5)], 1)
    with focus.mode(model, "hard", backend=backend):
        one, groups = logits(model, ids), focus.memberships(model)
        two = logits(model, other)
    for index, found in focus.memberships(model).items():
        for side, before in zip(found, groups[index], strict=True):
            assert side is None or torch.equal(side[..., :80, :], before[..., :80, :])
    assert not torch.allclose(one[:, 80:], two[:, 80:], atol=1e-3)
    close = 0.0 if backend == "dense" else 1e-4
    torch.testing.assert_close(one[:, :80], two[:, :80], rtol=0, atol=close)


def test_mode_is_restored_also_after_an_error() -> None:
    model = focus.attach(tiny("tiny-llama"), CONFIG, seed=0)
    state = model.focus_state
    with pytest.raises(KeyError), focus.mode(model, "soft", balance="sinkhorn", top_k=2):
        raise KeyError
    assert (state.settings.mode, state.settings.config) == ("hard", CONFIG)
    with focus.mode(model, "full"), focus.mode(model, "soft", top_k=2):
        with focus.mode(model, "hard"):  # the innermost holds, on top of the others' changes
            assert (state.settings.mode, state.settings.config.top_k) == ("hard", 2)
        assert state.settings.mode == "soft"
    assert model.config._attn_implementation == "focus"


def test_a_mode_that_is_not_entered_is_told() -> None:
    model = focus.attach(tiny("tiny-llama"), CONFIG, seed=0)
    with pytest.warns(UserWarning, match="write `with"):
        focus.mode(model, "full")
    assert model.focus_state.settings.mode == "hard"


def test_what_belongs_to_the_routers_is_no_matter_of_the_mode() -> None:
    model = focus.attach(tiny("tiny-llama"), CONFIG, seed=0)
    for change in ({"num_groups": 8}, {"routing_dim": 4}, {"routers": "key_head"}):
        with pytest.raises(ValueError, match="belongs to the routers"):
            focus.mode(model, "hard", **change)


def test_two_models_of_one_config_object() -> None:
    one = tiny("tiny-llama")
    other = type(one)(one.config).eval()
    plain = logits(other, token_ids(1, 90))
    focus.attach(one, CONFIG, seed=0)
    assert torch.equal(logits(other, token_ids(1, 90)), plain)
    focus.attach(other, CONFIG, seed=0)
    with focus.mode(one, "full"):
        assert not torch.equal(logits(other, token_ids(1, 90)), plain)
    focus.detach(one)
    with focus.mode(other, "full"):
        assert torch.equal(logits(other, token_ids(1, 90)), plain)


def test_another_attention_implementation_after_attach_is_told() -> None:
    model = focus.attach(tiny("tiny-llama"), CONFIG, seed=0)
    model.set_attn_implementation("sdpa")
    with pytest.raises(ValueError, match="attn_implementation: is 'sdpa'"):
        model(token_ids(1, 20))
    model.set_attn_implementation("focus")
    logits(model, token_ids(1, 20))


@pytest.mark.parametrize("change", [{}, {"balance": "softmax"}, {"routers": "query_head"}])
def test_hard_mode_is_causal_while_training_too(change: dict) -> None:
    model = focus.attach(tiny("tiny-llama"), CONFIG.replace(**change), seed=0).train()
    ids = token_ids(1, 90)
    other = torch.cat([ids[:, :50], token_ids(1, 40, seed=5)], 1)
    with focus.mode(model, "hard", backend="dense"):
        assert torch.equal(logits(model, ids)[:, :50], logits(model, other)[:, :50])


def test_potentials_mean_the_same_at_every_temperature() -> None:
    model, ids = focus.attach(tiny("tiny-llama"), CONFIG, seed=0), token_ids(1, 90)
    for router in model.focus_state.routers.values():
        router.potentials.normal_(generator=torch.Generator().manual_seed(1)).mul_(0.1)
    logits(model, ids)
    before = focus.memberships(model)
    with focus.mode(model, "hard", temperature=0.7):
        logits(model, ids)
    for index, found in focus.memberships(model).items():
        assert torch.equal(found.query, before[index].query)


def test_casts_after_attach_leave_the_routers_precision() -> None:
    for cast in (torch.nn.Module.half, torch.nn.Module.bfloat16, torch.nn.Module.double,
                 lambda m: m.to(torch.bfloat16), lambda m: m.to("cpu", torch.float16)):  # fmt: skip
        model = cast(focus.attach(tiny("tiny-llama"), CONFIG, seed=0))
        router = model.focus_state.routers[0]
        assert {t.dtype for t in (router.projection, router.centroids, router.potentials)} == {
            torch.float32
        }
        assert next(model.parameters()).dtype != torch.float32


def test_a_default_dtype_of_half_leaves_it_too() -> None:
    torch.set_default_dtype(torch.bfloat16)
    try:
        model = focus.attach(tiny("tiny-llama"), CONFIG, seed=0)
    finally:
        torch.set_default_dtype(torch.float32)
    assert model.focus_state.routers[0].projection.dtype == torch.float32


def test_detach_leaves_what_came_after_attach() -> None:
    model, ids = focus.attach(tiny("tiny-llama"), CONFIG, seed=0), token_ids(1, 60)
    model.model.layers[0].probe = torch.nn.Linear(2, 2)
    focus.detach(model)
    assert model.model.layers[0].probe.weight.requires_grad
    assert torch.equal(logits(model, ids), logits(tiny("tiny-llama"), ids))
    focus.attach(model, CONFIG)


def test_frozen_routers_in_soft_mode_are_told() -> None:
    model, ids = focus.attach(tiny("tiny-llama"), CONFIG, seed=0).train(), token_ids(1, 60)
    model.requires_grad_(False)
    model.lm_head.weight.requires_grad_()
    with focus.mode(model, "soft"), pytest.raises(ValueError, match="trainable_parameters"):
        model(ids)
    assert all(p.requires_grad for p in focus.trainable_parameters(model))
    with focus.mode(model, "soft"):
        model(ids)


def test_two_forward_passes_before_one_backward_keep_their_own_keys() -> None:
    """As preference training does it; with n-grams, and checkpointing that runs layers again."""
    config = FocusConfig.recipe(num_groups=6, window=16, sinks=2)
    found = []
    for checkpointed in (False, True):
        model = focus.attach(tiny("tiny-llama"), config, seed=0).train()
        if checkpointed:
            model.activation_checkpointing_enable({"use_reentrant": False})
        embedding = model.get_input_embeddings().weight.requires_grad_()
        one, other = token_ids(1, 60, seed=1), token_ids(1, 60, seed=2)
        one[:, -20:], other[:, -20:] = one[:, 5:25], other[:, 9:29]
        losses = [model(ids, labels=ids, use_cache=False).loss for ids in (one, other)]
        (losses[0] - losses[1]).backward()
        found.append(embedding.grad)
    torch.testing.assert_close(*found, rtol=1e-4, atol=1e-6)


def test_token_type_ids_are_no_token_ids() -> None:
    """GPT-2 looks them up in the same embedding."""
    config = FocusConfig.recipe(num_groups=6, window=16, sinks=2)
    model, ids = focus.attach(tiny("tiny-gpt2"), config, seed=0), token_ids(1, 60)
    ids[:, -20:] = ids[:, 5:25]
    logits(model, ids)
    plain = model.focus_state.last.further
    logits(model, ids, token_type_ids=torch.full_like(ids, 7))
    assert int((plain >= 0).sum()) > 0
    assert torch.equal(model.focus_state.last.further, plain)


def test_a_frozen_base_with_one_trained_projection() -> None:
    """Gradients that flow through values alone, under a soft-cap."""
    model, ids = focus.attach(tiny("tiny-gemma2"), CONFIG, seed=0), token_ids(1, 60)
    weights = [layer.self_attn.v_proj.weight.requires_grad_() for layer in model.model.layers]
    model(ids, labels=ids, use_cache=False).loss.backward()
    assert all(weight.grad.abs().sum() > 0 for weight in weights)


def test_a_deep_copy_has_routers_of_its_own() -> None:
    model = focus.attach(tiny("tiny-llama"), CONFIG, seed=0)
    twin = copy.deepcopy(model)
    with torch.no_grad():
        for parameter in focus.trainable_parameters(twin):
            parameter.zero_()
    ids = token_ids(1, 90)
    assert not torch.equal(logits(model, ids), logits(twin, ids))
    assert set(focus.density(model)) == {0, 1}


def test_seed_decides_the_routers() -> None:
    one, two, three = (focus.attach(tiny("tiny-llama"), CONFIG, seed=s) for s in (1, 1, 2))
    pairs = list(zip(*(focus.trainable_parameters(m) for m in (one, two, three)), strict=True))
    assert all(torch.equal(a, b) and not torch.equal(a, c) for a, b, c in pairs)


def test_a_model_is_pickled_after_a_forward_pass_and_holds_none_of_it() -> None:
    model, ids = focus.attach(tiny("tiny-llama"), CONFIG, seed=0), token_ids(1, 60)
    model.generate(ids, max_new_tokens=2, do_sample=False)
    before = logits(model, ids)
    twin = pickle.loads(pickle.dumps(model))
    assert torch.equal(logits(twin, ids), before)
    seen: list[weakref.ref] = []
    with focus.mode(model, "hard", tap=lambda i, h, query, key: seen.append(weakref.ref(query))):
        logits(model, ids)
    assert focus.density(model)[0] < 1
    gc.collect()
    assert [each() for each in seen] == [None, None]


def test_an_attach_that_fails_leaves_the_model_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object) -> None:
        raise RuntimeError("out of memory")

    model, ids = tiny("tiny-llama"), token_ids(1, 60)
    before = logits(model, ids)
    monkeypatch.setattr("focus.model.activate", fails)
    with pytest.raises(RuntimeError, match="out of memory"):
        focus.attach(model, CONFIG)
    assert all(p.requires_grad for p in model.parameters())
    assert torch.equal(logits(model, ids), before)
    monkeypatch.undo()
    focus.attach(model, CONFIG)


def test_a_mode_may_be_left_in_another_context_than_it_was_entered_in() -> None:
    model = focus.attach(tiny("tiny-llama"), CONFIG, seed=0)

    def steps() -> Iterator[str]:
        with focus.mode(model, "full"):
            yield model.focus_state.settings.mode

    generator = steps()
    assert contextvars.copy_context().run(next, generator) == "full"
    assert next(generator, "over") == "over"
    assert model.focus_state.settings.mode == "hard"


def test_a_cache_is_of_one_adapter(tmp_path: Path) -> None:
    model, ids = focus.attach(tiny("tiny-llama"), CONFIG, seed=0), token_ids(1, 60)
    focus.save_adapter(focus.attach(tiny("tiny-llama"), CONFIG, seed=1), tmp_path)
    focus.load_adapter(model, tmp_path, name="other")
    with torch.no_grad():
        cache = model(ids).past_key_values
        focus.set_adapter(model, "other")
        with pytest.raises(ValueError, match=r"with another router .*start with a new cache$"):
            model(ids[:, :1], past_key_values=cache)


def test_routers_in_anothers_wrapper_are_refused() -> None:
    model = focus.attach(tiny("tiny-llama"), CONFIG, seed=0)
    lora = LoraConfig(target_modules=["q_proj"], modules_to_save=["focus_router"])
    wrapped = get_peft_model(model, lora)
    with pytest.raises(ValueError, match=r"^focus_router: was wrapped in ModulesToSaveWrapper"):
        wrapped(token_ids(1, 60))


def test_what_peft_saves_beside_its_adapters_goes_on_learning() -> None:
    lora = LoraConfig(target_modules=["q_proj"], modules_to_save=["lm_head"])
    wrapped = focus.attach(get_peft_model(tiny("tiny-llama"), lora), CONFIG, seed=0)
    learning = {n for n, p in wrapped.named_parameters() if p.requires_grad}
    assert any("lm_head.modules_to_save" in name for name in learning)
    assert any("lora_A" in name for name in learning)
    assert not any("original_module" in name or "embed_tokens" in name for name in learning)


class TestErrors:
    def test_a_window_of_the_masks_own(self) -> None:
        model, position = focus.attach(tiny("tiny-llama"), CONFIG), torch.arange(40)
        distance = position[:, None] - position
        mask = ((distance >= 0) & (distance < 16))[None, None]
        with pytest.raises(ValueError, match="a sliding window of 16 tokens, which is not"):
            model(token_ids(1, 40), attention_mask=mask)

    def test_a_backend_that_knows_no_window_of_the_models_own(self) -> None:
        model = focus.attach(tiny("tiny-mistral"), CONFIG)
        refused = pytest.raises(ValueError, match=r"^backend: 'stripes' knows no sliding window")
        with focus.mode(model, "hard", backend="stripes"), refused:
            model(token_ids(1, 90))

    def test_attach_twice(self) -> None:
        model = focus.attach(tiny("tiny-llama"), CONFIG)
        with pytest.raises(ValueError, match="attached already"):
            focus.attach(model, CONFIG)

    def test_unsupported_architecture_by_name(self) -> None:
        small = BertConfig(
            hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16
        )
        with pytest.raises(ValueError, match=r"BertModel.*bert.*not supported"):
            focus.attach(BertModel(small), CONFIG)

    def test_not_attached(self) -> None:
        for call in (focus.density, focus.detach, focus.memberships):
            with pytest.raises(ValueError, match="not attached"):
                call(tiny("tiny-llama"))
        with pytest.raises(ValueError, match="not attached"):
            focus.mode(tiny("tiny-llama"), "soft")

    def test_unknown_mode_balance_and_k_change_nothing(self) -> None:
        model = focus.attach(tiny("tiny-llama"), CONFIG)
        for kwargs in ({"balance": "magic"}, {"top_k": 9}, {"probe": "x"}):
            with pytest.raises(ValueError):
                focus.mode(model, "soft", **kwargs)
        with pytest.raises(ValueError, match="mode: must be one of"):
            focus.mode(model, "fast")
        assert model.focus_state.settings.mode == "hard"

    def test_training_without_the_gate_is_warned_of_once(self) -> None:
        model = focus.attach(tiny("tiny-llama"), CONFIG).train()
        with pytest.warns(UserWarning, match="train inside `with focus.mode"):
            model(token_ids(1, 20), use_cache=False)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            model(token_ids(1, 20), use_cache=False)

    def test_hard_mode_in_training_is_fine_where_something_else_learns(self) -> None:
        model = focus.attach(tiny("tiny-llama"), CONFIG).train()
        model.model.layers[0].mlp.up_proj.weight.requires_grad_(True)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            model(token_ids(1, 20), use_cache=False)

    def test_an_adapter_that_is_not_finite_is_not_saved(self, tmp_path: Path) -> None:
        model = focus.attach(tiny("tiny-llama"), CONFIG)
        next(iter(focus.trainable_parameters(model))).data[..., 0] = float("nan")
        with pytest.raises(ValueError, match="holds NaN or infinity"):
            focus.save_adapter(model, tmp_path / "adapter")
        assert not (tmp_path / "adapter").exists()

    def test_config_of_another_kind(self) -> None:
        with pytest.raises(ValueError, match="must be a FocusConfig"):
            focus.attach(tiny("tiny-llama"), {"num_groups": 4})  # type: ignore[arg-type]

    def test_no_tokens(self) -> None:
        model = focus.attach(tiny("tiny-llama"), CONFIG)
        with pytest.raises(ValueError, match="no tokens"):
            model(torch.zeros(1, 0, dtype=torch.long))

    def test_nan_inputs(self) -> None:
        model = focus.attach(tiny("tiny-llama"), CONFIG)
        states = torch.full((1, 30, 64), float("nan"))
        with pytest.raises(ValueError, match="NaN"):
            model(inputs_embeds=states)

    def test_a_bias_on_the_logits_is_no_mask(self) -> None:
        model = focus.attach(tiny("tiny-llama"), CONFIG)
        position = torch.arange(20)
        slopes = -0.5 * (position[:, None] - position).clamp_min(0).float()
        bias = slopes.masked_fill(position[:, None] < position, torch.finfo(torch.float32).min)
        with pytest.raises(ValueError, match="bias on the logits"):
            model(token_ids(1, 20), attention_mask=bias[None, None])

    def test_custom_masks(self) -> None:
        model = focus.attach(tiny("tiny-llama"), CONFIG)
        mask = torch.ones(1, 1, 40, 40, dtype=torch.bool)
        with pytest.raises(ValueError, match="neither causal nor causal with a sliding window"):
            model(token_ids(1, 40), attention_mask=mask)

    @pytest.mark.parametrize("mode", ["soft", "hard"])
    @pytest.mark.parametrize("use_cache", [None, False])
    def test_packed_sequences(self, mode: str, use_cache: bool | None) -> None:
        model = focus.attach(tiny("tiny-llama"), CONFIG, seed=0)
        ids, packed = token_ids(1, 40), torch.arange(20).repeat(2)[None]
        between = torch.ones(1, 40, dtype=torch.long)
        between[:, 18:20] = 0
        bounds = torch.tensor([0, 20, 40])
        ways = ({"position_ids": packed}, {"position_ids": packed[:, :20].repeat_interleave(2, 1)},
                {"position_ids": packed, "attention_mask": torch.ones_like(ids)},
                {"position_ids": packed, "attention_mask": between},
                {"cu_seq_lens_q": bounds, "cu_seq_lens_k": bounds})  # fmt: skip
        with focus.mode(model, mode):
            for way in ways:
                with pytest.raises(ValueError, match=r"^position_ids: .* several texts in one row"):
                    model(ids, use_cache=use_cache, **way)
        with focus.mode(model, "full"), torch.no_grad():
            model(ids, use_cache=use_cache, **ways[0])

    @pytest.mark.parametrize("mode", ["soft", "hard"])
    def test_positions_of_one_text_are_no_packed_sequences(self, mode: str) -> None:
        model, ids = focus.attach(tiny("tiny-llama"), CONFIG, seed=0), token_ids(1, 40)
        mask = torch.ones(1, 40, dtype=torch.long)
        mask[:, :6] = mask[:, 20:23] = mask[:, 37:] = 0
        positions = (mask.cumsum(1) - 1).masked_fill(mask == 0, 1)
        with focus.mode(model, mode), torch.no_grad():
            expected = model(ids, position_ids=torch.arange(40)[None]).logits
            assert torch.equal(model(ids).logits, expected)
            model(ids, position_ids=positions, attention_mask=mask)
            pair = {"position_ids": positions, "attention_mask": mask.expand(2, -1)}
            model(ids.expand(2, -1), **pair)
            with pytest.raises(ValueError, match="covers 39 tokens where"):
                model(ids, position_ids=positions, attention_mask=mask[:, 1:])

    def test_more_groups_than_tokens(self) -> None:
        model = focus.attach(tiny("tiny-llama"), CONFIG.replace(num_groups=32, balance="sinkhorn"))
        with pytest.raises(ValueError, match="num_groups"):
            model(token_ids(1, 20), use_cache=False)
        with focus.mode(model, "hard", balance="causal"):  # a prompt may be as short as it likes
            model(token_ids(1, 20), use_cache=False)
