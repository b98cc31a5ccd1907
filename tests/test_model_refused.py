"""What an attached model refuses, and what it warns of."""

import warnings
from pathlib import Path

import pytest
import torch
from peft import LoraConfig, get_peft_model
from transformers import BertConfig, BertModel, LlamaForSequenceClassification

import focus
from tests.models import logits, tiny, token_ids
from tests.stepping import CONFIG


def test_another_attention_implementation_after_attach_is_told() -> None:
    model = focus.attach(tiny("tiny-llama"), CONFIG, seed=0)
    model.set_attn_implementation("sdpa")
    with pytest.raises(ValueError, match="attn_implementation: is 'sdpa'"):
        model(token_ids(1, 20))
    model.set_attn_implementation("focus")
    logits(model, token_ids(1, 20))


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


def test_a_window_of_the_masks_own() -> None:
    model, position = focus.attach(tiny("tiny-llama"), CONFIG), torch.arange(40)
    distance = position[:, None] - position
    mask = ((distance >= 0) & (distance < 16))[None, None]
    with pytest.raises(ValueError, match="a sliding window of 16 tokens, which is not"):
        model(token_ids(1, 40), attention_mask=mask)


def test_a_backend_that_knows_no_window_of_the_models_own() -> None:
    model = focus.attach(tiny("tiny-mistral"), CONFIG)
    refused = pytest.raises(ValueError, match=r"^backend: 'stripes' knows no sliding window")
    with focus.mode(model, "hard", backend="stripes"), refused:
        model(token_ids(1, 90))


def test_attach_twice() -> None:
    model = focus.attach(tiny("tiny-llama"), CONFIG)
    with pytest.raises(ValueError, match="attached already"):
        focus.attach(model, CONFIG)


def test_unsupported_architecture_by_name() -> None:
    small = BertConfig(
        hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16
    )
    with pytest.raises(ValueError, match=r"BertModel.*bert.*not supported"):
        focus.attach(BertModel(small), CONFIG)


def test_not_attached() -> None:
    for call in (focus.density, focus.detach, focus.memberships):
        with pytest.raises(ValueError, match="not attached"):
            call(tiny("tiny-llama"))
    with pytest.raises(ValueError, match="not attached"):
        focus.mode(tiny("tiny-llama"), "soft")


def test_unknown_mode_balance_and_k_change_nothing() -> None:
    model = focus.attach(tiny("tiny-llama"), CONFIG)
    for kwargs in ({"balance": "magic"}, {"top_k": 9}, {"probe": "x"}, {"backend": "fast"}):
        with pytest.raises(ValueError):
            focus.mode(model, "soft", **kwargs)
    with pytest.raises(ValueError, match="mode: must be one of"):
        focus.mode(model, "fast")
    assert model.focus_state.mode.name == "hard"


def test_training_without_the_gate_is_warned_of_once() -> None:
    model = focus.attach(tiny("tiny-llama"), CONFIG).train()
    with pytest.warns(UserWarning, match="train inside `with focus.mode"):
        model(token_ids(1, 20), use_cache=False)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model(token_ids(1, 20), use_cache=False)


def test_routers_that_are_still_random_are_told_of_once(tmp_path: Path) -> None:
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


def test_hard_mode_in_training_is_fine_where_something_else_learns() -> None:
    model = focus.attach(tiny("tiny-llama"), CONFIG).train()
    model.model.layers[0].mlp.up_proj.weight.requires_grad_(True)
    with torch.no_grad():  # as a training of the routers would
        for each in focus.trainable_parameters(model):
            each.mul_(1.01)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model(token_ids(1, 20), use_cache=False)


def test_an_adapter_that_is_not_finite_is_not_saved(tmp_path: Path) -> None:
    model = focus.attach(tiny("tiny-llama"), CONFIG)
    next(iter(focus.trainable_parameters(model))).data[..., 0] = float("nan")
    with pytest.raises(ValueError, match="holds NaN or infinity"):
        focus.save_adapter(model, tmp_path / "adapter")
    assert not (tmp_path / "adapter").exists()


def test_config_of_another_kind() -> None:
    with pytest.raises(ValueError, match="must be a FocusConfig"):
        focus.attach(tiny("tiny-llama"), {"num_groups": 4})  # type: ignore[arg-type]


def test_no_tokens() -> None:
    model = focus.attach(tiny("tiny-llama"), CONFIG)
    for batch, tokens in ((1, 0), (0, 20)):
        with pytest.raises(ValueError, match="no tokens"):
            model(torch.zeros(batch, tokens, dtype=torch.long), use_cache=False)


@pytest.mark.parametrize("mode", ["soft", "hard"])
def test_nan_inputs(mode: str) -> None:
    model = focus.attach(tiny("tiny-llama"), CONFIG)
    states = torch.full((1, 30, 64), float("nan"))
    with focus.mode(model, mode), pytest.raises(ValueError, match="query: holds NaN"):
        model(inputs_embeds=states, use_cache=False)


def test_a_bias_on_the_logits_is_no_mask() -> None:
    model = focus.attach(tiny("tiny-llama"), CONFIG)
    position = torch.arange(20)
    slopes = -0.5 * (position[:, None] - position).clamp_min(0).float()
    bias = slopes.masked_fill(position[:, None] < position, torch.finfo(torch.float32).min)
    with pytest.raises(ValueError, match="bias on the logits"):
        model(token_ids(1, 20), attention_mask=bias[None, None])


def test_custom_masks() -> None:
    model = focus.attach(tiny("tiny-llama"), CONFIG)
    mask = torch.ones(1, 1, 40, 40, dtype=torch.bool)
    with pytest.raises(ValueError, match="neither causal nor causal with a sliding window"):
        model(token_ids(1, 40), attention_mask=mask)


def test_more_groups_than_tokens() -> None:
    model = focus.attach(tiny("tiny-llama"), CONFIG.replace(num_groups=32, balance="sinkhorn"))
    with pytest.raises(ValueError, match="num_groups"):
        model(token_ids(1, 20), use_cache=False)
    with focus.mode(model, "hard", balance="causal"):  # a prompt may be as short as it likes
        model(token_ids(1, 20), use_cache=False)


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
