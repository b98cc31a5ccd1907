"""What tells one model's weights from another's."""

from __future__ import annotations

import copy
import warnings
from pathlib import Path

import pytest
import torch
from torch import nn

import focus
from focus.fingerprint import fingerprint, same
from tests.adapters import CONFIG, refused, trained
from tests.models import build


def test_another_model_of_the_same_shape(tmp_path: Path) -> None:
    model = trained()
    attached_base, other = model, build("llama")
    attached_base.name_or_path, other.name_or_path = "org/first", "org/second"
    focus.save_adapter(model, tmp_path)
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.add_(0.01 * torch.randn_like(parameter))
    refused(tmp_path, r"(?s)org/second has other weights.*org/first.*check_base=False", other)
    other.name_or_path = "org/first"  # a LoRA was merged into it before
    refused(tmp_path, r"(?s)trained on \(org/first with weights that were changed before", other)
    assert "focus_state" in focus.load_adapter(other, tmp_path, check_base=False).__dict__


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("of_checkpoint", [torch.float32, torch.bfloat16])
def test_a_checkpoint_is_known_in_any_dtype(dtype: torch.dtype, of_checkpoint: torch.dtype) -> None:
    model = build("llama").to(of_checkpoint)
    wide, narrow = copy.deepcopy(model).float(), copy.deepcopy(model).to(dtype)
    assert same(fingerprint(wide)[0], fingerprint(narrow)[0])


def test_a_merged_lora_is_another_model_and_an_unmerged_one_is_not() -> None:
    peft = pytest.importorskip("peft")
    before = fingerprint(build("llama"))[0]
    model = build("llama")
    wrapped = peft.get_peft_model(model, peft.LoraConfig(target_modules=["q_proj"]))
    assert fingerprint(model)[0] == before
    for name, parameter in wrapped.named_parameters():
        if "lora_B" in name:
            nn.init.normal_(parameter, std=0.02)
    assert not same(fingerprint(wrapped.merge_and_unload())[0], before)


def test_routers_are_no_part_of_it() -> None:
    assert fingerprint(trained())[0] == fingerprint(build("llama"))[0]


def test_weights_that_cannot_be_read_are_left_out_with_a_note(tmp_path: Path) -> None:
    model = trained()
    weight = model.model.layers[0].mlp.up_proj
    del weight.weight
    weight.register_buffer("weight", None)
    weight._parameters["weight"] = nn.Parameter(torch.zeros(2, 2, dtype=torch.uint8), False)
    assert fingerprint(model) == (None, "weights are quantised (torch.uint8)")
    focus.save_adapter(model, tmp_path)
    with pytest.warns(UserWarning, match="quantised"):
        focus.load_adapter(build("llama"), tmp_path)


class Packed(torch.Tensor):
    """As torchao and quanto have them: a float32 tensor by its dtype alone."""


def test_quantised_weights_are_no_fingerprint() -> None:
    model = trained()
    up = model.model.layers[0].mlp.up_proj
    packed = torch.zeros(2, 2).as_subclass(Packed)
    up._parameters["weight"] = nn.Parameter(packed, requires_grad=False)
    assert fingerprint(model) == (None, "weights are quantised (Packed)")
    dynamic = torch.ao.quantization.quantize_dynamic(trained(), {nn.Linear}, torch.qint8)
    assert fingerprint(dynamic) == (None, "weights are quantised (Linear)")


def test_a_model_with_further_tokens_is_told_what_to_do(tmp_path: Path) -> None:
    focus.save_adapter(trained(), tmp_path)
    other = build("llama")
    other.resize_token_embeddings(264)
    refused(tmp_path, r"has 264 token embeddings.*had 257.*check_base=False", other)


def test_routers_beside_a_lora_ask_for_it(tmp_path: Path) -> None:
    peft = pytest.importorskip("peft")

    def wrapped(seed: int) -> nn.Module:
        torch.manual_seed(seed)
        config = peft.LoraConfig(r=2, target_modules=["q_proj"], init_lora_weights=False)
        return peft.get_peft_model(build("llama"), config)

    focus.save_adapter(focus.attach(wrapped(1), CONFIG, seed=0), tmp_path)
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message="base_model")
        focus.load_adapter(wrapped(1), tmp_path)
    for other in (build("llama"), wrapped(2)):
        with pytest.warns(UserWarning, match="beside an adapter of peft's"):
            focus.load_adapter(other, tmp_path)
    refused(tmp_path, "peft's adapter has been merged", wrapped(1).merge_and_unload())
