"""Adapters without a model, on the hub, in formats that are gone; model cards."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from huggingface_hub import HfApi
from safetensors.torch import save_file

import focus
from focus import FocusConfig
from focus.adapter import describe
from focus.card import model_card
from focus.hub import FocusAdapter
from focus.state import attached
from tests.models import build
from tests.test_adapter import ADAPTER, CONFIG, WEIGHTS, logits, trained

FILES = sorted(["README.md", ADAPTER, WEIGHTS])


def test_an_adapter_apart_from_a_model(tmp_path: Path) -> None:
    model = trained()
    describe(model).save_pretrained(tmp_path)
    adapter = FocusAdapter.from_pretrained(tmp_path)
    assert adapter.config == CONFIG
    assert adapter.base["routed_layers"] == [0, 1]
    assert torch.equal(logits(focus.load_adapter(build("llama"), adapter)), logits(model))


@pytest.mark.parametrize("through_save", [False, True])
def test_push_uploads_the_three_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, through_save: bool
) -> None:
    uploads: list[dict[str, Any]] = []

    def create_repo(self: HfApi, repo_id: str, **kwargs: Any) -> Any:
        return type("Url", (), {"repo_id": repo_id})

    def upload_folder(self: HfApi, *, folder_path: Path, **kwargs: Any) -> str:
        found = FocusAdapter.from_pretrained(folder_path)
        card = (folder_path / "README.md").read_text()
        names = sorted(path.name for path in folder_path.iterdir())
        uploads.append({**kwargs, "files": names, "adapter": found, "card": card})
        return "https://hub/commit"

    monkeypatch.setattr(HfApi, "create_repo", create_repo)
    monkeypatch.setattr(HfApi, "upload_folder", upload_folder)
    adapter = describe(trained())
    if through_save:
        adapter.save_pretrained(tmp_path, push_to_hub=True, repo_id="org/name", card={"steps": 5})
    else:
        adapter.push_to_hub("org/name", model_card_kwargs={"card": {"steps": 5}})
    (upload,) = uploads
    assert (upload["repo_id"], upload["files"]) == ("org/name", FILES)
    assert upload["adapter"].config == CONFIG
    assert "| steps | 5 |" in upload["card"]


def test_a_push_beside_a_model_is_named_by_the_models_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pushed: list[str] = []
    monkeypatch.setattr(FocusAdapter, "push_to_hub", lambda self, name, **_: pushed.append(name))
    build("llama").save_pretrained(tmp_path / "mine")
    describe(trained()).save_pretrained(tmp_path / "mine", push_to_hub=True)
    assert pushed == ["mine"]


def test_an_id_is_fetched_from_the_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = trained()
    focus.save_adapter(model, tmp_path)
    asked = []

    def download(repo_id: str, filename: str, **options: Any) -> str:
        asked.append((repo_id, filename, options["revision"]))
        return str(tmp_path / filename)

    monkeypatch.setattr("focus.hub.hf_hub_download", download)
    loaded = focus.load_adapter(build("llama"), "org/name", revision="v1")
    assert asked == [("org/name", WEIGHTS, "v1"), ("org/name", ADAPTER, "v1")]
    assert torch.equal(logits(loaded), logits(model))


def test_without_a_connection_the_error_says_so() -> None:
    with pytest.raises(ValueError, match=r"(?s)org/name: no such folder, and.*connection"):
        focus.load_adapter(build("llama"), "org/name")
    with pytest.raises(ValueError, match="no such folder, and no id"):
        focus.load_adapter(build("llama"), "results/a/b")


def test_an_adapter_of_format_1_is_refused_by_name(tmp_path: Path) -> None:
    """Its files were ``config.json`` and ``adapter.safetensors``."""
    adapter = describe(trained())
    save_file(adapter.tensors, tmp_path / "adapter.safetensors")
    base = {"model_type": "llama", "hidden_size": 64, "key_heads": 2, "routed_layers": [0, 1]}
    description = {"format": 1, "focus": {"num_groups": 4, "sides": "two"}, "base": base}
    (tmp_path / "config.json").write_text(json.dumps(description))
    with pytest.raises(ValueError, match=r"config\.json: an adapter of format 1.*train it again"):
        focus.load_adapter(build("llama"), tmp_path)
    assert adapter.write(tmp_path) == tmp_path  # saved again
    assert FocusAdapter.from_pretrained(tmp_path).config == CONFIG


@pytest.mark.parametrize("text", ["[1]", "{"])
def test_a_config_that_is_neither_a_models_nor_an_adapters(tmp_path: Path, text: str) -> None:
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(ValueError, match=f"no {ADAPTER} of Focus"):
        FocusAdapter.from_pretrained(tmp_path)
    assert describe(trained()).write(tmp_path) == tmp_path
    assert (tmp_path / "config.json").read_text() == text
    assert FocusAdapter.from_pretrained(tmp_path).config == CONFIG


# Cards


def test_the_card_names_base_config_and_run(tmp_path: Path) -> None:
    model = trained()
    model.name_or_path = "org/base"
    run = {"seeds": [0], "versions": {"torch": "2.13"}, "note": "a | b"}
    (tmp_path / "run.json").write_text(json.dumps(run))
    focus.save_adapter(model, tmp_path, card=tmp_path / "run.json")
    card = (tmp_path / "README.md").read_text()
    assert card.startswith("---\nlibrary_name: focus-attention\n")
    assert "base_model: org/base\n" in card
    rows = ("| num_groups | 4 |", "| versions.torch | 2.13 |", "| note | a \\| b |")
    assert all(row in card for row in rows)


def test_a_folder_is_no_base_model_on_the_hub(tmp_path: Path) -> None:
    card = model_card(FocusConfig(), {"base_model_name_or_path": str(tmp_path)}, 1)
    assert "base_model:" not in card
    assert "## Training" not in card


@pytest.mark.parametrize("base", [{}, {"base_model_name_or_path": None}])
def test_a_model_without_a_name(base: dict[str, None]) -> None:
    card = model_card(FocusConfig(), {**base, "model_type": "llama"}, 1)
    assert "# Focus adapter for a llama without a name\n" in card
    assert "from_pretrained('<the base model>')" in card
    assert "None" not in card
    assert "base_model:" not in card


def test_a_run_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"card: .*run\.json cannot be read"):
        focus.save_adapter(trained(), tmp_path, card=tmp_path / "run.json")


def test_threads_may_save_into_one_folder(tmp_path: Path) -> None:
    """Each of another adapter; what lies there is one of them, whole."""
    configs = [FocusConfig(num_groups=4, window=window) for window in (16, 17, 18, 19)]
    every = [describe(focus.attach(build("llama"), config, seed=config.window))
             for config in configs]  # fmt: skip
    for _ in range(10):
        with ThreadPoolExecutor(4) as pool:
            list(pool.map(lambda one: one.write(tmp_path / "own"), every * 2))
        found = FocusAdapter.from_pretrained(tmp_path / "own")
        wanted = every[found.config.window - 16].tensors
        assert all(torch.equal(found.tensors[name], each) for name, each in wanted.items())
        assert len(list((tmp_path / "own").iterdir())) == 3


def test_a_damaged_fingerprint_is_named(tmp_path: Path) -> None:
    focus.save_adapter(focus.attach(build("llama"), FocusConfig(num_groups=4), seed=0), tmp_path)
    told = json.loads((tmp_path / "adapter_config.json").read_text())
    told["base"]["fingerprint"] = [1]
    (tmp_path / "adapter_config.json").write_text(json.dumps(told))
    with pytest.raises(ValueError, match=r"base\.fingerprint is no JSON object"):
        focus.load_adapter(build("llama"), tmp_path)


def test_an_adapter_beside_a_model_saved_later(tmp_path: Path) -> None:
    model = trained()
    focus.save_adapter(model, tmp_path)
    model.save_pretrained(tmp_path)
    assert torch.equal(logits(focus.load_adapter(build("llama"), tmp_path)), logits(model))
    for router in attached(model).routers.values():
        router.centroids.data.neg_()  # trained on
    focus.save_adapter(model, tmp_path)
    assert not (tmp_path / ADAPTER).exists()
    assert torch.equal(logits(focus.load_adapter(build("llama"), tmp_path)), logits(model))
    type(build("llama")).from_pretrained(tmp_path)
