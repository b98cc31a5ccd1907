"""Adapters as files and by name. A model's logits in hard mode tell whether all came back."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import AutoModelForCausalLM

import focus
from focus import FocusConfig
from focus.adapter import describe
from focus.fingerprint import fingerprint
from focus.state import attached
from tests.adapters import CONFIG, OTHER, logits, refused, trained
from tests.models import build, tiny

ADAPTER = "adapter_config.json"
WEIGHTS = "adapter_model.safetensors"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return focus.save_adapter(trained(), tmp_path / "adapter")


@pytest.mark.parametrize("name", ["gpt2", "gemma3", "qwen3_moe"])
@pytest.mark.parametrize("config", [CONFIG, OTHER, FocusConfig.paper(balance="causal", window=16)])
def test_round_trip(tmp_path: Path, name: str, config: FocusConfig) -> None:
    model = trained(name, config)
    focus.save_adapter(model, tmp_path)
    loaded = focus.load_adapter(build(name), tmp_path)
    assert attached(loaded).config == config
    assert torch.equal(logits(loaded), logits(model))
    assert not torch.equal(logits(loaded), logits(focus.detach(model)))
    assert all(p.requires_grad for p in focus.trainable_parameters(loaded))


def test_only_routers_are_saved_and_in_float32(tmp_path: Path) -> None:
    focus.save_adapter(trained().bfloat16(), tmp_path)
    saved = load_file(tmp_path / WEIGHTS)
    assert {name.split(".", 2)[2] for name in saved} == {
        "projection", "centroids", "potentials", "batches"
    }  # fmt: skip
    assert {t.dtype for name, t in saved.items() if "batches" not in name} == {torch.float32}


def test_what_the_config_file_says(folder: Path) -> None:
    found = json.loads((folder / ADAPTER).read_text())
    assert found["format"] == 2
    assert found["peft_type"] == "FOCUS"
    assert found["focus"] == CONFIG.to_dict()
    assert found["base"]["routed_layers"] == [0, 1]
    assert set(found["base"]["fingerprint"]) == {"bfloat16", "float16"}
    assert set(found["versions"]) == {"focus", "torch", "transformers"}


def test_peft_refuses_the_adapter(folder: Path) -> None:
    peft = pytest.importorskip("peft")
    with pytest.raises(KeyError, match="FOCUS"):
        peft.PeftConfig.from_pretrained(folder)


# Files of others


def test_a_model_in_the_folder_stays_as_it_is_and_loads(tmp_path: Path) -> None:
    model = trained()
    build("llama").save_pretrained(tmp_path)
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}
    written = focus.save_adapter(model, tmp_path)
    assert written == tmp_path / "focus"
    assert {p: p.read_bytes() for p in tmp_path.iterdir() if p.is_file()} == before
    base = AutoModelForCausalLM.from_pretrained(tmp_path)
    assert torch.equal(logits(focus.load_adapter(base, tmp_path)), logits(model))


def test_a_process_that_does_not_write_is_told_the_same_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = trained()
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    monkeypatch.setattr(dist, "is_initialized", lambda: True)
    monkeypatch.setattr(dist, "get_rank", lambda: 1)
    assert focus.save_adapter(model, tmp_path) == tmp_path / "focus"
    assert not (tmp_path / "focus").exists()


def test_a_lora_in_the_folder_stays_as_it_is(tmp_path: Path) -> None:
    peft = pytest.importorskip("peft")
    lora = peft.get_peft_model(build("llama"), peft.LoraConfig(target_modules=["q_proj"]))
    lora.save_pretrained(tmp_path)
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}
    model = trained()
    focus.save_adapter(model, tmp_path)
    assert {p: p.read_bytes() for p in tmp_path.iterdir() if p.is_file()} == before
    assert torch.equal(logits(focus.load_adapter(build("llama"), tmp_path)), logits(model))


def test_saving_again_replaces_the_adapter_and_keeps_the_card(tmp_path: Path) -> None:
    focus.save_adapter(trained(config=OTHER), tmp_path)
    (tmp_path / "README.md").write_text("mine")
    model = trained()
    assert focus.save_adapter(model, tmp_path) == tmp_path
    assert (tmp_path / "README.md").read_text() == "mine"
    assert torch.equal(logits(focus.load_adapter(build("llama"), tmp_path)), logits(model))
    assert sorted(p.name for p in tmp_path.iterdir()) == ["README.md", ADAPTER, WEIGHTS]


def test_a_save_that_fails_half_way_leaves_no_mixture(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*args: object) -> None:
        raise OSError("disk full")

    monkeypatch.setattr("focus.hub.save_file", fail)
    with pytest.raises(OSError, match="disk full"):
        focus.save_adapter(trained(config=OTHER), folder)
    monkeypatch.undo()
    assert torch.equal(logits(focus.load_adapter(build("llama"), folder)), logits(trained()))


def test_a_mode_around_it_is_not_saved(tmp_path: Path) -> None:
    model = trained()
    with focus.mode(model, "hard", window=7, top_k=3, temperature=0.7):
        focus.save_adapter(model, tmp_path)
    assert json.loads((tmp_path / ADAPTER).read_text())["focus"] == CONFIG.to_dict()


# Refusals: the model is left as it was


def test_another_kind_of_model(folder: Path) -> None:
    refused(folder, "model_type = 'llama', this one has 'qwen2'", build("qwen2"))
    refused(folder, "key_heads", tiny("tiny-llama", num_key_value_heads=1))


def test_a_model_of_another_depth(folder: Path) -> None:
    message = r"^adapter: .* with number of routed layers = 2, this one has 3; load the base model"
    refused(folder, message, tiny("tiny-llama", num_hidden_layers=3))


def nan(tensors: dict[str, Tensor]) -> None:
    tensors["layers.1.centroids"][0, 0, 0, 0] = float("nan")


def infinite(tensors: dict[str, Tensor]) -> None:
    tensors["layers.0.potentials"][0, 0, 0] = float("inf")


def too_wide(tensors: dict[str, Tensor]) -> None:
    tensors["layers.0.centroids"] = torch.full_like(
        tensors["layers.0.centroids"], 1e300, dtype=torch.float64
    )


def whole(tensors: dict[str, Tensor]) -> None:
    tensors["layers.0.centroids"] = tensors["layers.0.centroids"].long()


def below_zero(tensors: dict[str, Tensor]) -> None:
    tensors["layers.0.batches"] = torch.tensor(-1)


def missing(tensors: dict[str, Tensor]) -> None:
    tensors.pop("layers.0.centroids")


def unknown(tensors: dict[str, Tensor]) -> None:
    tensors["layers.7.centroids"] = torch.zeros(1)


def groups(tensors: dict[str, Tensor]) -> None:
    tensors["layers.0.centroids"] = tensors["layers.0.centroids"][:, :, :3].contiguous()


@pytest.mark.parametrize(
    ("damage", "match"),
    [
        (nan, "layers.1.centroids holds NaN"),
        (infinite, "layers.0.potentials holds NaN or inf"),
        (too_wide, "layers.0.centroids holds NaN or inf"),
        (whole, "layers.0.centroids is torch.int64, not torch.float32"),
        (below_zero, "layers.0.batches is negative"),
        (missing, r"missing \['layers.0.centroids'\]"),
        (unknown, r"unknown \['layers.7.centroids'\]"),
        (groups, r"layers.0.centroids is of shape \(2, 2, 3, 16\).*\(2, 2, 4, 16\)"),
    ],
)
def test_damaged_tensors(
    folder: Path, damage: Callable[[dict[str, Tensor]], None], match: str
) -> None:
    tensors = load_file(folder / WEIGHTS)
    damage(tensors)
    save_file(tensors, folder / WEIGHTS)
    refused(folder, match)
    model = trained(config=OTHER)
    before = logits(model)
    with pytest.raises(ValueError, match=match):
        focus.load_adapter(model, folder, name="second")
    assert focus.adapters(model) == ["default"]
    assert torch.equal(logits(model), before)


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"focus": {**CONFIG.to_dict(), "window": 0}}, "window"),
        ({"focus": {**CONFIG.to_dict(), "num_groups": 5}}, "is of shape"),
        ({"focus": {"colour": 1}}, "colour: unknown field"),
        ({"focus": {"window": "wide"}}, "window"),
        ({"focus": None}, "'focus' is missing"),
        ({"base": None}, "'base' is missing"),
        ({"base": ...}, "'base' is missing"),
        ({"base": {}}, "model_type = None"),
        ({"format": 9}, "not a Focus adapter of format 2"),
    ],
)
def test_nonsense_in_the_config(folder: Path, change: dict[str, Any], match: str) -> None:
    found = json.loads((folder / ADAPTER).read_text())
    changed = {name: value for name, value in {**found, **change}.items() if value is not ...}
    (folder / ADAPTER).write_text(json.dumps(changed))
    refused(folder, match)


def test_missing_and_unreadable_files(tmp_path: Path, folder: Path) -> None:
    refused(tmp_path, f"no {ADAPTER}")
    weights = (folder / WEIGHTS).read_bytes()
    (folder / WEIGHTS).write_bytes(weights[:100])
    refused(folder, "not readable as safetensors")
    (folder / WEIGHTS).unlink()
    refused(folder, f"no {WEIGHTS}")
    (folder / ADAPTER).write_text("{")
    refused(folder, "not JSON")
    (folder / ADAPTER).write_text("[]")
    refused(folder, "not a JSON object")


def test_a_model_without_weights(folder: Path) -> None:
    with torch.device("meta"):
        model = build("llama")
    refused(folder, "meta device", model)


def test_saving_without_focus(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="not attached"):
        focus.save_adapter(build("llama"), tmp_path / "new")
    assert not (tmp_path / "new").exists()


def test_wrapped_models(folder: Path, tmp_path: Path) -> None:
    peft = pytest.importorskip("peft")
    wrapped = peft.get_peft_model(build("llama"), peft.LoraConfig(target_modules=["q_proj"]))
    assert focus.load_adapter(wrapped, folder) is wrapped
    assert torch.equal(logits(wrapped), logits(trained()))
    focus.save_adapter(wrapped, tmp_path / "again")
    assert describe(wrapped).base["fingerprint"] == fingerprint(build("llama"))[0]


@pytest.mark.parametrize("folder", ["", None, 1])
def test_a_folder_must_be_named(folder: Any) -> None:
    model = trained()
    for asked in (focus.save_adapter, partial(focus.load_adapter, name="second")):
        with pytest.raises(ValueError, match=r"^folder: must be a path that is not empty, got "):
            asked(model, folder)
