"""Small models made here: every attention type, and a tokenizer that saw no held-out text."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

import focus
from experiments import sources
from experiments.sources import catalogue, fetching, made, models
from experiments.sources.packages import SourceError

WORDS = "the king said to the queen that a ship had come into the harbour at night\n"


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    folder = tmp_path / "corpus"
    folder.mkdir()
    with gzip.open(folder / "train.raw.gz", "wt", encoding="utf-8") as file:
        file.write(WORDS * 50)
    (folder / "test.txt").write_text("zyzzyva zyzzyva zyzzyva\n" * 500)
    return folder


@pytest.mark.parametrize("architecture", made.ARCHITECTURES)
def test_every_type_can_be_routed(architecture: str) -> None:
    model = AutoModelForCausalLM.from_config(made.config_of(architecture, 96, 2)).eval()
    ids = torch.arange(80)[None]
    with torch.no_grad():
        plain = model(input_ids=ids).logits
        focus.attach(model, focus.FocusConfig(num_groups=4, top_k=4, window=16), seed=0)
        with focus.mode(model, "hard"):
            everything = model(input_ids=ids).logits
        with focus.mode(model, "hard", top_k=1):
            one_group = model(input_ids=ids).logits
    assert torch.allclose(plain, everything, atol=1e-4)
    assert not torch.allclose(plain, one_group, atol=1e-4)


def test_listed_models_are_of_five_types() -> None:
    own = [each for each in sources.sources().values() if each.kind == "made"]
    assert {each.architecture for each in own} == set(made.ARCHITECTURES)
    for each in own:
        made.config_of(each.architecture, each.width, each.layers)


def test_the_tokenizer_is_of_the_training_side_and_always_the_same(corpus: Path) -> None:
    one, other = made.trained_tokenizer(corpus), made.trained_tokenizer(corpus)
    assert one.get_vocab() == other.get_vocab()
    ids = one(WORDS)["input_ids"]
    assert one.decode(ids) == WORDS
    assert len(ids) <= len(WORDS.split()) + 1
    assert len(one("zyzzyva")["input_ids"]) > 3  # the held-out word was not learnt


def test_fetching_makes_it_once_and_it_loads(corpus: Path, tmp_path: Path, capsys: Any,
                                             monkeypatch: pytest.MonkeyPatch) -> None:  # fmt: skip
    row = {"role": "model", "kind": "made", "what": "small", "licence": "none", "width": 96,
           "layers": 2, "architecture": "qwen2", "corpus": "corpus"}  # fmt: skip
    listed = {"small-new": catalogue.Source(name="small-new", **row)}
    monkeypatch.setenv("FOCUS_DATA", str(tmp_path))
    for module in (fetching, catalogue):
        monkeypatch.setattr(module, "sources", lambda: listed)
    monkeypatch.chdir(tmp_path)
    for _ in range(2):
        fetching.fetch(listed["small-new"])
    assert capsys.readouterr().out.endswith("fetch: small-new: is there\n")
    model, tokenizer = models.load("small-new")
    assert model.config.num_key_value_heads == 1
    assert tokenizer.get_vocab() == made.trained_tokenizer(corpus).get_vocab()
    assert tokenizer.decode(tokenizer(WORDS)["input_ids"]) == WORDS


@pytest.mark.parametrize(("architecture", "width", "message"),
                         [("bert", 96, "architecture: must be one of gpt2"),
                          ("llama", 100, "width: must be a multiple of 96, got 100"),
                          ("llama", 0, "width: must be a multiple of 96, got 0")])  # fmt: skip
def test_nonsense_is_named(architecture: str, width: int, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        made.config_of(architecture, width, 2)


def test_a_corpus_without_a_training_side_is_refused(tmp_path: Path) -> None:
    (tmp_path / "test.txt").write_text("held out")
    with pytest.raises(SourceError, match="no file of it is called train"):
        made.trained_tokenizer(tmp_path)
