"""Low-rank updates: how many numbers, peft's own files, merged in float32."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from peft import PeftModel, inject_adapter_in_model
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, LlamaConfig

from experiments import trained, training
from experiments.regimes.lora import Lora, lora_config
from experiments.settings import Lora as LoraSettings
from experiments.stages.train import refuse_targets
from focus import FocusConfig, attach
from focus.model import trainable_parameters
from tests.experiments.regimes.test_base import fitted, new
from tests.experiments.training import LORA, ROUTED
from tests.models import tiny, token_ids

# A fifteenth of SmolLM2-135M, without its vocabulary, which neither LoRA nor routers see.
SMOL = LlamaConfig(vocab_size=64, hidden_size=576, intermediate_size=64, num_hidden_layers=2,
                   num_attention_heads=9, num_key_value_heads=3)  # fmt: skip


def test_rank_thirty_has_as_many_numbers_as_the_routers() -> None:
    model = AutoModelForCausalLM.from_config(SMOL)
    config = lora_config(LoraSettings(steps=1))
    inject_adapter_in_model(config, model, "default")
    lora = sum(p.numel() for n, p in model.named_parameters() if "lora_" in n)
    assert 15 * lora == 3_456_000
    routed = attach(AutoModelForCausalLM.from_config(SMOL), FocusConfig.recipe(), seed=0)
    routers = sum(p.numel() for p in trainable_parameters(routed))
    assert abs(lora / routers - 1) < 0.02


def test_the_adapter_is_pefts_and_is_merged_as_it_was_trained(work: Any, tmp_path: Path) -> None:
    chosen = work()
    training.train("adapted", 0, chosen)
    cell, folder = chosen.cell("adapted"), trained.weights(chosen.cell("adapted"), 0, chosen)
    tensors = load_file(folder / "adapter_model.safetensors").values()
    assert {tensor.dtype for tensor in tensors} == {torch.bfloat16}
    ids = token_ids(1, 40)
    with torch.no_grad():
        before = tiny("tiny-llama")(input_ids=ids).logits
        by_peft = PeftModel.from_pretrained(tiny("tiny-llama"), str(folder))(input_ids=ids).logits
        built = trained.build(cell, 0, chosen).model(input_ids=ids).logits
    assert torch.allclose(by_peft, built, atol=1e-5)
    assert (built - before).abs().max() > 0.1


def test_a_model_in_bfloat16_keeps_its_format_and_its_rotary_frequencies(
    work: Any, tmp_path: Path
) -> None:
    chosen = work(half={"base": "adapted", "dtype": "bfloat16"})
    regime = fitted(chosen, "half", tmp_path)
    formats = {p.dtype: p.requires_grad for p in regime.parameters()}
    assert formats == {torch.bfloat16: False, torch.float32: True}
    training.train("half", 0, chosen)
    model = trained.build(chosen.cell("half"), 0, chosen).model
    assert {p.dtype for p in model.parameters()} == {torch.bfloat16}
    assert model.model.rotary_emb.inv_freq.dtype == torch.float32
    # One rounding: of the sum in float32, not of bfloat16 weights and an update.
    exact = Lora.load(tiny("tiny-llama"), trained.weights(chosen.cell("half"), 0, chosen))
    wanted = exact.model.layers[0].self_attn.q_proj.weight
    assert torch.equal(model.model.layers[0].self_attn.q_proj.weight, wanted.bfloat16())


def test_start_weights_are_the_seeds_own(work: Any, tmp_path: Path) -> None:
    first, again, other = (new(work(), "adapted", seed) for seed in (0, 0, 1))
    for regime in (first, again, other):
        regime.configure_model()
    states = [regime.state_dict() for regime in (first, again, other)]
    name = next(name for name in states[0] if "lora_A" in name)
    assert torch.equal(states[0][name], states[1][name])
    assert not torch.equal(states[0][name], states[2][name])


def test_updates_under_the_routers_mask_leave_the_routers_alone(work: Any, tmp_path: Path) -> None:
    masked = {"base": "plain", "method": ROUTED, "start": "routed", "regime": LORA}
    chosen = work(masked=masked)
    training.train("routed", 0, chosen)
    regime = fitted(chosen, "masked", tmp_path)  # frozen routers are checked, too
    full = fitted(work(masked=masked), "adapted", tmp_path / "full")
    assert regime.losses[0] != pytest.approx(full.losses[0], abs=1e-6)
    assert all("lora_" in name for name in regime.state_dict())
    training.train("masked", 0, chosen)
    built = trained.build(chosen.cell("masked"), 0, chosen)
    routers = trained.build(chosen.cell("routed"), 0, chosen).model.focus_state.routers
    assert torch.equal(built.model.focus_state.routers[0].centroids, routers[0].centroids)


def test_unknown_targets_are_refused_by_field(work: Any) -> None:
    chosen = work(off={"base": "adapted", "regime": {**LORA, "targets": ["query"]}})
    with pytest.raises(ValueError, match=r"experiments\.off\.regime\.targets:.*query"):
        new(chosen, "off").configure_model()


def test_a_target_that_the_model_lacks_is_refused_beside_one_that_it_has(work: Any) -> None:
    """peft trains the others, and says nothing."""
    chosen = work(mine={"base": "plain", "regime": {**LORA, "targets": ["q_proj", "v_prj"]}})
    wanted = r"^experiments\.mine\.regime\.targets: tiny-llama has no module v_prj$"
    with pytest.raises(ValueError, match=wanted):
        refuse_targets(chosen.cell("mine"))
    refuse_targets(work(mine={"base": "adapted"}).cell("mine"))
