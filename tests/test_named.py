"""Several adapters on one model, by name."""

from __future__ import annotations

import copy
import json
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn.utils.parametrizations import weight_norm
from torch.nn.utils.parametrize import remove_parametrizations

import focus
from focus.hub import FocusAdapter
from focus.named import adapter_of, state_of
from focus.state import attached
from tests.adapters import CONFIG, OTHER, logits, trained
from tests.models import build, token_ids


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return focus.save_adapter(trained(), tmp_path / "adapter")


def test_adapters_by_name(tmp_path: Path) -> None:
    first, second = trained(), trained(config=OTHER, seed=4)
    focus.save_adapter(first, tmp_path / "a")
    focus.save_adapter(second, tmp_path / "b")
    model = focus.load_adapter(build("llama"), tmp_path / "a", name="a")
    assert focus.load_adapter(model, tmp_path / "b", name="b") is model
    assert focus.adapters(model) == ["a", "b"]
    assert torch.equal(logits(model), logits(first))
    focus.set_adapter(model, "b")
    assert focus.adapters(model) == ["b", "a"]
    assert attached(model).config == OTHER
    assert torch.equal(logits(model), logits(second))
    assert len(list(focus.trainable_parameters(model))) == 4
    focus.save_adapter(model, tmp_path / "again", name="a")
    saved = json.loads((tmp_path / "again" / "adapter_config.json").read_text())
    assert saved["focus"] == CONFIG.to_dict()
    focus.delete_adapter(focus.set_adapter(model, "a"), "b")
    assert focus.adapters(model) == ["a"]
    assert torch.equal(logits(model), logits(first))
    assert torch.equal(logits(focus.detach(model)), logits(build("llama")))


def test_training_one_adapter_leaves_the_others(tmp_path: Path) -> None:
    focus.save_adapter(trained(), tmp_path)
    model = focus.load_adapter(trained(config=OTHER), tmp_path, name="b")
    own = state_of(adapter_of(attached(model), "b").routers)
    before = {key: tensor.clone() for key, tensor in own.items()}
    with torch.no_grad():
        for parameter in focus.trainable_parameters(model):
            parameter.add_(1)
    assert all(torch.equal(t, before[key]) for key, t in own.items())


def test_an_adapter_that_waited_follows_the_model(tmp_path: Path) -> None:
    focus.save_adapter(trained(), tmp_path)
    model = focus.load_adapter(trained(config=OTHER), tmp_path, name="b").train()
    model.to("meta")
    focus.set_adapter(model, "b")
    routers = attached(model).routers.values()
    assert {p.device.type for router in routers for p in router.parameters()} == {"meta"}
    assert all(router.training for router in routers)


def test_a_copy_of_a_model_has_adapters_of_its_own(folder: Path) -> None:
    model = focus.load_adapter(trained(config=OTHER), folder, name="b")
    before, twin = logits(model), copy.deepcopy(model)
    focus.set_adapter(twin, "b")
    with torch.no_grad():
        for parameter in focus.trainable_parameters(twin):
            parameter.zero_()
    assert focus.adapters(model) == ["default", "b"]
    assert torch.equal(logits(model), before)
    assert torch.equal(logits(focus.set_adapter(model, "b")), logits(trained()))


def test_names_are_checked(folder: Path) -> None:
    model = trained()
    with pytest.raises(ValueError, match=r"has an adapter 'default' already.*detach"):
        focus.load_adapter(model, folder)
    with pytest.raises(ValueError, match="no adapter 'x'; it has 'default'"):
        focus.set_adapter(model, "x")
    with pytest.raises(ValueError, match="no adapter 'x'"):
        focus.save_adapter(model, folder, name="x")
    with pytest.raises(ValueError, match="active adapter"):
        focus.delete_adapter(model, "default")
    for change in (focus.set_adapter, focus.delete_adapter):
        with pytest.raises(ValueError, match="name: must be a string"):
            change(model, None)
    with pytest.raises(ValueError, match="name"):
        focus.load_adapter(model, folder, name="")


def test_a_loaded_object_can_be_put_on_several_models(folder: Path) -> None:
    adapter = FocusAdapter.from_pretrained(folder)
    one, two = (focus.load_adapter(build("llama"), adapter) for _ in range(2))
    before = logits(two)
    with torch.no_grad():
        for parameter in focus.trainable_parameters(one):
            parameter.add_(torch.randn_like(parameter))
    assert torch.equal(logits(two), before)


class Hidden(nn.Module):
    """A linear layer whose weight is no tensor of the module's, as in torch's own quantisation."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.out_features, self.hidden = linear.out_features, [linear.weight.detach()]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x @ self.hidden[0].T


def test_an_attention_module_without_tensors_is_routed() -> None:
    plain, model = (focus.attach(build("llama"), CONFIG, seed=0) for _ in range(2))
    focus.detach(model)
    for layer in model.model.layers:
        for name, module in list(layer.self_attn.named_children()):
            setattr(layer.self_attn, name, Hidden(module))
    assert torch.equal(logits(focus.attach(model, CONFIG, seed=0)), logits(plain))


@pytest.mark.parametrize("name", ["projection", "centroids"])
def test_a_parametrised_router_runs_and_is_saved_when_it_is_plain_again(
    name: str, tmp_path: Path
) -> None:
    model = trained()
    before, routers = logits(model), list(attached(model).routers.values())
    for router in routers:
        weight_norm(router, name)
    cached = model(token_ids(1, 60)).past_key_values
    assert torch.allclose(logits(model), before, atol=1e-5)
    with pytest.raises(ValueError, match=r"^focus_router: is parametrised.*remove_parametriz"):
        focus.save_adapter(model, tmp_path)
    with torch.no_grad():
        routers[0].parametrizations[name].original0.mul_(2)
    with pytest.raises(ValueError, match="with another router"):
        model(token_ids(1, 1), past_key_values=cached)
    for router in routers:
        remove_parametrizations(router, name)
    focus.save_adapter(model, tmp_path)
    assert torch.equal(logits(focus.load_adapter(build("llama"), tmp_path)), logits(model))
