import copy
import gc
import pickle
import warnings
import weakref
from pathlib import Path

import pytest
import torch
from peft import LoraConfig, get_peft_model
from transformers import BertConfig, BertModel, LlamaForSequenceClassification

import focus
from focus import FocusConfig
from tests.models import ARCHITECTURES, tiny, token_ids

CONFIG = FocusConfig(num_groups=4, top_k=1, window=16, sinks=2)


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


def test_parameters_that_are_kept_serve_twice() -> None:
    """An optimiser takes them, and then clipping: an iterator would be spent, without a word."""
    model = focus.attach(tiny("tiny-llama"), CONFIG, seed=0).train()
    kept = focus.trainable_parameters(model)
    torch.optim.AdamW(kept)
    with focus.mode(model, "soft"):
        model(token_ids(1, 60), labels=token_ids(1, 60)).loss.backward()
    assert torch.nn.utils.clip_grad_norm_(kept, 1e-4) > 1e-4
    left = torch.stack([p.grad.norm() for p in kept if p.grad is not None]).norm()
    assert left <= 1.01e-4


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


def test_detach_keeps_an_implementation_that_was_set_since() -> None:
    model = focus.attach(tiny("tiny-llama"), CONFIG, seed=0)
    model.set_attn_implementation("eager")
    assert focus.detach(model).config._attn_implementation == "eager"


@pytest.mark.parametrize("mode", ["soft", "hard", "full"])
def test_the_default_device_may_be_another(mode: str) -> None:
    model, ids = focus.attach(tiny("tiny-llama"), CONFIG, seed=0), token_ids(1, 60)
    with torch.no_grad(), focus.mode(model, mode):
        wanted = model(ids, use_cache=False).logits
        cached = mode != "soft"
        with torch.device("meta"):
            found = model(ids, use_cache=cached)
            step = model(ids[:, :1], past_key_values=found.past_key_values) if cached else found
    assert torch.equal(found.logits, wanted)
    assert step.logits.is_cpu
    focus.density(model)


@pytest.mark.parametrize("loaded", [False, True])
def test_routers_made_under_inference_mode_can_learn(loaded: bool, tmp_path: Path) -> None:
    focus.save_adapter(focus.attach(tiny("tiny-llama"), CONFIG, seed=0), tmp_path)
    model = tiny("tiny-llama").train()
    with torch.inference_mode():
        if loaded:
            focus.load_adapter(model, tmp_path)
        else:
            focus.attach(model, CONFIG, seed=0)
    with focus.mode(model, "soft"):
        model(token_ids(1, 60), labels=token_ids(1, 60)).loss.backward()
    torch.optim.SGD(focus.trainable_parameters(model), 0.1).step()


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


@pytest.mark.parametrize("bias", ["lora_only", "all"])
def test_weights_that_peft_trains_go_on_learning(bias: str) -> None:
    lora = LoraConfig(target_modules=["q_proj"], bias=bias)
    wrapped = get_peft_model(tiny("tiny-qwen2"), lora)
    before = {n: p.requires_grad for n, p in wrapped.named_parameters()}
    assert any(learns and "bias" in name for name, learns in before.items())
    focus.attach(wrapped, CONFIG, seed=0)
    after = {n: p.requires_grad for n, p in wrapped.named_parameters() if "focus_router" not in n}
    assert after == before


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
        for kwargs in ({"balance": "magic"}, {"top_k": 9}, {"probe": "x"}, {"backend": "fast"}):
            with pytest.raises(ValueError):
                focus.mode(model, "soft", **kwargs)
        with pytest.raises(ValueError, match="mode: must be one of"):
            focus.mode(model, "fast")
        assert model.focus_state.mode.name == "hard"

    def test_training_without_the_gate_is_warned_of_once(self) -> None:
        model = focus.attach(tiny("tiny-llama"), CONFIG).train()
        with pytest.warns(UserWarning, match="train inside `with focus.mode"):
            model(token_ids(1, 20), use_cache=False)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            model(token_ids(1, 20), use_cache=False)

    def test_routers_that_are_still_random_are_told_of_once(self, tmp_path: Path) -> None:
        random = "are as focus.attach made them"
        model = focus.attach(tiny("tiny-llama"), CONFIG).eval()
        long, short = token_ids(1, 4 * CONFIG.window), token_ids(1, CONFIG.window)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            model(short)  # the window holds every pair
        with pytest.warns(UserWarning, match=random):
            model(long)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            model(long)
            trained = focus.attach(tiny("tiny-llama"), CONFIG).eval()
            with torch.no_grad():
                next(iter(trained.focus_state.routers.values())).centroids.mul_(2.0)
            trained(long)
            focus.save_adapter(trained, tmp_path / "adapter")
            loaded = tiny("tiny-llama").eval()
            focus.load_adapter(loaded, tmp_path / "adapter")
            loaded(long)

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
        for batch, tokens in ((1, 0), (0, 20)):
            with pytest.raises(ValueError, match="no tokens"):
                model(torch.zeros(batch, tokens, dtype=torch.long), use_cache=False)

    @pytest.mark.parametrize("mode", ["soft", "hard"])
    def test_nan_inputs(self, mode: str) -> None:
        model = focus.attach(tiny("tiny-llama"), CONFIG)
        states = torch.full((1, 30, 64), float("nan"))
        with focus.mode(model, mode), pytest.raises(ValueError, match="query: holds NaN"):
            model(inputs_embeds=states, use_cache=False)

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

    def test_more_groups_than_tokens(self) -> None:
        model = focus.attach(tiny("tiny-llama"), CONFIG.replace(num_groups=32, balance="sinkhorn"))
        with pytest.raises(ValueError, match="num_groups"):
            model(token_ids(1, 20), use_cache=False)
        with focus.mode(model, "hard", balance="causal"):  # a prompt may be as short as it likes
            model(token_ids(1, 20), use_cache=False)


def test_a_model_of_an_attached_models_config() -> None:
    teacher = focus.attach(tiny("tiny-llama"), CONFIG, seed=0)
    student, ids = type(teacher)(teacher.config).eval(), token_ids(1, 60)
    with pytest.raises(ValueError, match=r"not attached to this module.*'sdpa'"):
        logits(student, ids)
    student.set_attn_implementation("sdpa")
    assert logits(student, ids).isfinite().all()
    focus.attach(student, CONFIG, seed=0)
    with focus.mode(student, "full"):
        found = logits(student, ids)
    assert torch.equal(found, logits(focus.detach(student), ids))


def test_a_part_and_the_whole_are_not_attached_both() -> None:
    model = tiny("tiny-llama")
    for one, other in ((model, model.model), (model.model, model)):
        focus.attach(one, CONFIG, seed=0)
        with pytest.raises(ValueError, match="a part of this model, or to a model around it"):
            focus.attach(other, CONFIG, seed=0)
        with pytest.raises(ValueError, match="a part of this model, or to a model around it"):
            focus.density(other)
        focus.detach(one)


def test_a_new_head_is_told_of() -> None:
    model = LlamaForSequenceClassification(tiny("tiny-llama").config)
    with pytest.warns(UserWarning, match=r"score\.weight among them"):
        focus.attach(model, CONFIG, seed=0)
    assert not model.score.weight.requires_grad
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        focus.attach(tiny("tiny-llama"), CONFIG, seed=0)
