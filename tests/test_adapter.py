import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

import focus
from focus import FocusConfig
from tests.models import ARCHITECTURES, tiny, token_ids

CONFIG = FocusConfig(num_groups=4, top_k=2, window=16, routers="kv_head", sides="two")


def saved(folder: Path, name: str = "tiny-llama", config: FocusConfig = CONFIG) -> torch.Tensor:
    model = focus.attach(tiny(name), config, seed=3)
    with torch.no_grad():
        for layer in model.focus_state.layers.values():
            if layer.router is not None:
                layer.router.potentials.normal_()
        logits = model(token_ids(1, 60), use_cache=False).logits
    focus.save_adapter(model, folder)
    return logits


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_round_trip(tmp_path: Path, name: str) -> None:
    reference = saved(tmp_path, name)
    model = focus.load_adapter(tiny(name), tmp_path)
    assert model.focus_state.config == CONFIG
    with torch.no_grad():
        assert torch.equal(model(token_ids(1, 60), use_cache=False).logits, reference)


def test_only_routers_are_saved(tmp_path: Path) -> None:
    saved(tmp_path)
    names = {name.split(".", 2)[2] for name in load_file(tmp_path / "adapter.safetensors")}
    assert names == {"projection", "centroids", "potentials", "batches"}


def refused(folder: Path, match: str, name: str = "tiny-llama") -> None:
    model = tiny(name)
    with pytest.raises(ValueError, match=match):
        focus.load_adapter(model, folder)
    assert not hasattr(model, "focus_state")
    assert model.config._attn_implementation == "sdpa"


def test_an_adapter_of_another_model_is_refused(tmp_path: Path) -> None:
    saved(tmp_path)
    refused(tmp_path, "model_type", "tiny-qwen2")


def test_missing_and_damaged_files(tmp_path: Path) -> None:
    refused(tmp_path, "no config.json")
    saved(tmp_path)
    weights = (tmp_path / "adapter.safetensors").read_bytes()
    (tmp_path / "adapter.safetensors").write_bytes(weights[:100])
    refused(tmp_path, "not readable as safetensors")
    (tmp_path / "adapter.safetensors").unlink()
    refused(tmp_path, "no adapter.safetensors")
    (tmp_path / "config.json").write_text("{")
    refused(tmp_path, "not JSON")
    (tmp_path / "config.json").write_text("{}")
    refused(tmp_path, "not a Focus adapter")


def test_weights_that_do_not_fit_their_config(tmp_path: Path) -> None:
    saved(tmp_path)
    tensors = load_file(tmp_path / "adapter.safetensors")
    tensors.pop("layers.0.centroids")
    save_file(tensors, tmp_path / "adapter.safetensors")
    refused(tmp_path, "does not fit")


def test_nonsense_in_the_config_is_named(tmp_path: Path) -> None:
    saved(tmp_path)
    path = tmp_path / "config.json"
    description = json.loads(path.read_text())
    description["focus"]["window"] = 0
    path.write_text(json.dumps(description))
    refused(tmp_path, "window")
