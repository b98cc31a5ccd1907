"""Weights that are read into their places after sharding are those of a model that is read whole;
two processes that share them are in tests/experiments/regimes/test_parts.py."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file, save_file
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from transformers import AutoModelForCausalLM, PreTrainedModel

import focus
from experiments.regimes.lora import Lora
from experiments.regimes.tensors import cast, layers
from experiments.sources import catalogue, models, sharded
from focus.fingerprint import fingerprint

Tensors = dict[str, torch.Tensor]


@pytest.fixture
def alone() -> Iterator[None]:
    """A group of one process."""
    dist.init_process_group("gloo", rank=0, world_size=1, store=dist.HashStore())
    yield
    dist.destroy_process_group()


@pytest.fixture
def publish(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Writes a tiny model as if ``gpt2`` had been fetched, its tensors changed."""
    folder = tmp_path / "gpt2"
    monkeypatch.setattr(catalogue, "ROOT", tmp_path)

    def made(shape: str, change: Callable[[Tensors], object] = dict) -> None:
        models.load(shape)[0].save_pretrained(folder)
        tensors = load_file(folder / "model.safetensors")
        change(tensors)
        save_file(tensors, folder / "model.safetensors", {"format": "pt"})

    return made


def spread(dtype: torch.dtype = torch.float32) -> PreTrainedModel:
    model = sharded.bare("gpt2", dtype)
    mesh = init_device_mesh("cpu", (1,))
    for module in (*layers(model), model):
        fully_shard(module, mesh=mesh)
    return model


@pytest.mark.parametrize("shape", models.TINY)
def test_every_architecture_is_read_as_it_is(alone: None, publish: Callable[..., None],
                                             tmp_path: Path, shape: str) -> None:  # fmt: skip
    publish(shape)
    whole = AutoModelForCausalLM.from_pretrained(tmp_path / "gpt2", dtype=torch.bfloat16).eval()
    model = spread(torch.bfloat16)
    sharded.fill(model, "gpt2")
    ours, theirs = (dict(each.named_parameters()) for each in (model, whole))
    assert ours.keys() == theirs.keys()
    for name, tensor in theirs.items():
        assert torch.equal(ours[name].full_tensor(), tensor)
    ours, theirs = (dict(each.named_buffers()) for each in (model, whole))
    assert ours.keys() == theirs.keys()
    for name, tensor in theirs.items():
        assert torch.equal(ours[name], tensor)
        assert ours[name].dtype == tensor.dtype
    assert fingerprint(model, gather=True) == fingerprint(whole) == fingerprint(whole, gather=True)
    ids = torch.arange(40)[None]
    with torch.no_grad():
        assert torch.equal(model(input_ids=ids).logits, whole(input_ids=ids).logits)


@pytest.mark.parametrize(("shape", "targets"), [
    ("tiny-llama", ["q_proj", "down_proj"]), ("tiny-gpt2", ["c_attn", "mlp.c_proj"]),
])  # fmt: skip
@pytest.mark.filterwarnings("ignore:fan_in_fan_out")
def test_a_lora_is_merged_as_into_a_whole_model(
    alone: None, publish: Callable[..., None], tmp_path: Path, shape: str, targets: list[str]
) -> None:
    publish(shape)
    config = LoraConfig(r=3, lora_alpha=5, target_modules=targets, init_lora_weights=False)
    get_peft_model(models.load(shape)[0], config).save_pretrained(tmp_path / "lora")
    base = AutoModelForCausalLM.from_pretrained(tmp_path / "gpt2")
    before = {name: p.detach().clone() for name, p in base.named_parameters()}
    whole = cast(Lora.load(base, tmp_path / "lora"), torch.bfloat16)
    model = spread(torch.bfloat16)
    updates = Lora.updates(model, tmp_path / "lora")
    sharded.fill(model, "gpt2", updates)
    assert len(updates) == 4
    for name, tensor in whole.named_parameters():
        assert torch.equal(model.get_parameter(name).full_tensor(), tensor), name
        assert torch.equal(tensor, before[name].bfloat16()) == (name not in updates)


def test_what_is_put_beside_weights_is_drawn_on_the_cpu(publish: Callable[..., None]) -> None:
    publish("tiny-llama")
    model = sharded.bare("gpt2", torch.float32)
    whole, _ = models.load("tiny-llama")
    config = focus.FocusConfig.recipe(num_groups=6)
    with sharded.as_on_cpu(model):
        focus.attach(model, config, seed=3)
    focus.attach(whole, config, seed=3)
    real = {n: p for n, p in model.named_parameters() if not p.is_meta}
    assert real.keys() == {n for n, p in whole.named_parameters() if p.requires_grad}
    for name, parameter in real.items():
        assert torch.equal(parameter, whole.get_parameter(name))
    assert all(p.is_meta != p.requires_grad for p in model.parameters())


def without(tensors: Tensors) -> None:
    for name in list(tensors)[:4]:
        del tensors[name]


def cut(tensors: Tensors) -> None:
    tensors["model.norm.weight"] = tensors["model.norm.weight"][1:].clone()


def untied(tensors: Tensors) -> None:
    tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"] + 1


def renamed(tensors: Tensors) -> None:
    tensors["lm_head.weight"] = tensors.pop("model.embed_tokens.weight")


@pytest.mark.parametrize(("shape", "change", "told"), [
    ("tiny-llama", without, r"gpt2: no file has .*weight, .*weight, .* and 1 more; fetch "),
    ("tiny-llama", cut, r"another shape of model\.norm\.weight \(63,\) for \(64,\); fetch the "),
    ("tiny-gemma2", untied, r"ties model\.embed_tokens\.weight and lm_head\.weight, which differ"),
])  # fmt: skip
def test_files_that_do_not_fit_are_refused(
    alone: None, publish: Callable[..., None], shape: str, change: Callable[[Tensors], None],
    told: str,
) -> None:  # fmt: skip
    publish(shape, change)
    with pytest.raises(ValueError, match=told):
        sharded.fill(spread(), "gpt2")


def test_tied_weights_may_have_either_name(alone: None, publish: Callable[..., None]) -> None:
    publish("tiny-gemma2", renamed)
    model = spread()
    sharded.fill(model, "gpt2")
    assert model.lm_head.weight is model.model.embed_tokens.weight
    assert torch.equal(model.lm_head.weight.full_tensor(),
                       models.load("tiny-gemma2")[0].lm_head.weight)  # fmt: skip


def test_models_without_such_files_are_read_whole(publish: Callable[..., None],
                                                  tmp_path: Path) -> None:  # fmt: skip
    publish("tiny-llama")
    assert sharded.readable("gpt2")
    assert not sharded.readable("tiny-llama")
    (tmp_path / "gpt2/model.safetensors").rename(tmp_path / "gpt2/pytorch_model.bin")
    assert not sharded.readable("gpt2")
