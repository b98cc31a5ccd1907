from __future__ import annotations

import pytest
import torch
from safetensors.torch import load_file, save_file

from experiments.sources import catalogue, models


@pytest.mark.parametrize("name", models.TINY)
def test_a_tiny_model_is_the_same_every_time_and_reads_bytes(name):
    state = torch.random.get_rng_state()
    model, tokenizer = models.load(name)
    assert torch.equal(torch.random.get_rng_state(), state)
    again, _ = models.load(name)
    for first, second in zip(model.parameters(), again.parameters(), strict=True):
        assert torch.equal(first, second)
    tokens = tokenizer("Straße 7\n", return_tensors="pt").input_ids
    assert tokens.shape == (1, len("Straße 7\n".encode()))
    assert tokenizer.decode(tokens[0]) == "Straße 7\n"
    assert model(tokens).logits.shape == (1, tokens.shape[1], 257)
    assert not model.training


def test_the_byte_tokenizer_takes_every_byte_and_marks_the_end():
    tokenizer = models.byte_tokenizer()
    text = "".join(chr(code) for code in range(1, 1024))
    tokens = tokenizer(text).input_ids
    assert tokenizer.decode(tokens) == text
    assert max(tokens) < 256 == tokenizer.eos_token_id


def test_the_number_format_is_the_one_asked_for():
    assert models.load("tiny-llama", "bfloat16")[0].dtype == torch.bfloat16
    assert models.load("tiny-llama", torch.float64)[0].dtype == torch.float64
    with pytest.raises(ValueError, match="dtype: must be one of auto, float32, bfloat16, float16"):
        models.load("tiny-llama", "int8")


@pytest.mark.parametrize(("native", "wanted"), [(True, torch.bfloat16), (False, torch.float32)])
def test_auto_is_what_the_hardware_computes_in(monkeypatch, native, wanted):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: native)
    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: False)
    assert models.resolve_dtype("auto") == wanted


def test_a_fetched_folder_is_loaded_as_it_is(tmp_path, monkeypatch):
    monkeypatch.setattr(catalogue, "ROOT", tmp_path)
    model, tokenizer = models.load("tiny-llama")
    folder = tmp_path / "gpt2"
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    weights = load_file(folder / "model.safetensors")
    weights["model.norm.weight"] += 1
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    read, reader = models.load("gpt2")
    assert torch.equal(read.model.norm.weight, model.model.norm.weight + 1)
    assert reader("abc").input_ids == tokenizer("abc").input_ids


def test_an_unknown_model_and_one_that_was_not_fetched_are_told_apart(tmp_path, monkeypatch):
    monkeypatch.delenv("FOCUS_DATA", raising=False)
    monkeypatch.setattr(catalogue, "ROOT", tmp_path)
    with pytest.raises(ValueError, match=r"model bert: unknown; known are smollm2.*tiny-gemma2"):
        models.load("bert")
    with pytest.raises(ValueError, match=r"run `python -m experiments\.stages\.fetch gpt2` first"):
        models.load("gpt2")


@pytest.mark.parametrize(("cards", "gibibytes", "group", "several"), [
    (8, 1e-4, False, True),  # one has no room
    (8, 80, False, False),
    (1, 1e-4, False, False),
    (8, 1e-4, True, False),  # the others are other processes'
])  # fmt: skip
def test_a_model_that_no_gpu_holds_is_read_on_several(tmp_path, monkeypatch, cards, gibibytes,
                                                      group, several):  # fmt: skip
    monkeypatch.setattr(catalogue, "ROOT", tmp_path)
    model, tokenizer = models.load("tiny-llama")
    for each in (model, tokenizer):
        each.save_pretrained(tmp_path / "gpt2")
    free = int(gibibytes * 2**30)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)  # by their number, on its build
    monkeypatch.setattr(torch.cuda, "device_count", lambda: cards)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (free, free))
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: group)
    real, asked = models.AutoModelForCausalLM.from_pretrained, []

    def watched(*args, device_map=None, **how):
        asked.append(device_map)
        return real(*args, **how)

    monkeypatch.setattr(models.AutoModelForCausalLM, "from_pretrained", watched)
    models.load("gpt2", torch.float32)
    models.load("gpt2", torch.float32, device="cpu")
    assert asked == ["auto" if several else None, None]
