import copy
import gc
import pickle
import weakref
from pathlib import Path

import pytest
import torch
from peft import LoraConfig, get_peft_model

import focus
from tests.models import ARCHITECTURES, logits, tiny, token_ids
from tests.stepping import CONFIG


@pytest.fixture(params=ARCHITECTURES)
def name(request: pytest.FixtureRequest) -> str:
    return request.param


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
