"""What the README shows must run as it stands."""

from __future__ import annotations

import csv
import json
import re
from pathlib import Path

import pytest
import torch

import focus
from analysis import claims, pages
from analysis.pages import findings
from analysis.results import Results
from experiments import settings
from experiments.sources import models
from tests.composability.clients.made import text, tokenizer

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_the_example_of_the_library_runs(tmp_path, monkeypatch):
    (code,) = re.findall(r"```python\n(.*?)```", README, re.S)
    model, _ = models.load("tiny-llama")
    model.save_pretrained(tmp_path / "model")
    monkeypatch.chdir(tmp_path)
    names = {
        "folder": tmp_path / "model",
        "input_ids": torch.randint(0, 256, (2, 160)),
        "calibration": [torch.randint(0, 256, (1, 700))],
        "another_copy": models.load("tiny-llama")[0],
    }
    exec(compile(code, "README.md", "exec"), names)
    assert (tmp_path / "adapter" / "adapter_config.json").is_file()
    assert names["loss"].item() > 0
    routers = names["model"].focus_state.routers.values()
    assert all(router.batches == 1 for router in routers)  # the groups were balanced


def test_the_script_that_trains_an_adapter_runs(tmp_path, monkeypatch):
    """A few steps of short windows in the place of 270 of 2,048 tokens."""
    page = (ROOT / "docs" / "train.md").read_text(encoding="utf-8")
    code, ours, question = re.findall(r"```python\n(.*?)```", page, re.S)
    base, lora, routers = re.findall(r'"(\S+/\S+)"', ours)
    kept = json.loads((ROOT / routers / "adapter_config.json").read_text())
    assert kept["base_model_name_or_path"] == base
    assert (ROOT / lora / "adapter_config.json").is_file()
    code = code.replace("2048", "700").replace("max_steps=270", "max_steps=3, use_cpu=True")
    model, _ = models.load("tiny-llama")
    model.save_pretrained(tmp_path / "model")
    tokenizer().save_pretrained(tmp_path / "model")
    monkeypatch.chdir(tmp_path)
    letters = torch.randint(0, 60, (2200,), generator=torch.Generator().manual_seed(0))
    names = {"folder": tmp_path / "model", "texts": [text(letters)]}
    exec(compile(code, "docs/train.md", "exec"), names)
    saved = json.loads((tmp_path / "adapter" / "adapter_config.json").read_text())["focus"]
    assert saved["allocated"]
    assert saved["heavy_hitters"] == 0.02
    routers = names["model"].focus_state.routers.values()
    assert all(router.batches == 3 for router in routers)
    asked = {"torch": torch, "text": names["windows"][0][None], "question": torch.ones(1, 5).long()}
    exec(compile(question, "docs/train.md", "exec"), names | asked)
    assert set(focus.density(names["model"]).values()) == {1.0}


LOADED = settings.load(ROOT / "params.yaml")
RESULTS = Results.of(LOADED, ROOT / "results")
measured = pytest.mark.skipif(not RESULTS.root.is_dir(), reason="no results of this scale yet")


@pytest.fixture(scope="module")
def rows():
    return claims.build(RESULTS, LOADED.tolerances)


@measured
@pytest.mark.parametrize("page", pages.PAGES)
def test_what_stands_between_markers_is_what_the_files_say(page, rows):
    """`python -m analysis --pages` renders it."""
    text = (ROOT / page).read_text(encoding="utf-8")
    assert pages.rendered(text, RESULTS, rows) == text


@measured
def test_what_the_findings_say_is_what_the_files_say(rows):
    text = (ROOT / pages.FINDINGS).read_text(encoding="utf-8")
    assert "not measured" not in text
    assert findings.page(RESULTS, rows) == text


@measured
def test_the_ledger_is_what_the_files_say(rows):
    """A result that changed without `make report` shows here."""
    kept = {row["id"]: row["verdict"] for row in ledger()}
    assert {row["id"]: row["verdict"] for row in rows} == kept


@measured
def test_both_forms_of_the_ledger_agree():
    with (ROOT / "results" / "claims.csv").open(newline="", encoding="utf-8") as handle:
        columns = list(csv.DictReader(handle))
    assert columns == [{name: "" if value is None else str(value) for name, value in row.items()}
                       for row in ledger()]  # fmt: skip


def ledger():
    return json.loads((ROOT / "results" / "claims.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize(
    "path", re.findall(r"`((?:\w[\w./-]*/[\w./-]*|\w+\.(?:yaml|cff)))`", README)
)
def test_a_path_that_the_readme_names_is_there(path):
    made = ("results/report.html", "results/claims.md", ".venv/bin", "mistral-7b")
    if path in made or path.startswith(("data/", "/")):
        pytest.skip("made by a run")
    assert (ROOT / path).exists()
