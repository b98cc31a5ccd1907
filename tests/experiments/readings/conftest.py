"""A folder in which a tiny model is trained and read."""

from __future__ import annotations

import json
import random
import shutil
import string
from pathlib import Path
from typing import Any

import pytest
import yaml

from experiments import settings
from experiments.settings import Settings
from experiments.training import train
from tests.experiments import training

READINGS: dict[str, Any] = {
    "search": {"kind": "perplexity", "texts": ["letters"], "documents": 2, "context": 64},
    "final": {"kind": "perplexity", "texts": ["letters"], "side": "test", "final": True,
              "documents": 2, "windows": 2, "context": 64, "soft": False},
    "copying": {"kind": "copying", "texts": ["letters"], "documents": 2, "context": 96,
                "passage": 16, "lead": 2, "distances": [32, 64]},
    "leak": {"kind": "leak", "texts": ["letters"], "documents": 2, "context": 64},
    "positions": {"kind": "positions", "texts": ["letters"], "documents": 2, "context": 64,
                  "width": 24},
    "groups": {"kind": "groups", "texts": ["letters"], "documents": 2, "context": 64},
    "contents": {"kind": "contents", "texts": ["letters"], "documents": 2, "context": 64},
    "induction": {"kind": "induction", "texts": ["letters"], "documents": 2, "context": 96,
                  "passage": 16, "lead": 2, "distances": [32, 64]},
    "affinity": {"kind": "affinity", "texts": ["letters"], "documents": 2, "windows": 2,
                 "context": 64},
    "picture": {"kind": "picture", "texts": ["letters"], "documents": 2, "context": 64},
    "information": {"kind": "information", "texts": ["letters"], "documents": 2, "context": 64},
}  # fmt: skip
EXPERIMENTS: dict[str, Any] = {
    "pretrained": {"base": "plain", "readings": ["search", "copying"]},
    "routed": {"base": "plain", "seeds": [0, 1], "method": training.ROUTED,
               "regime": {**training.CENTROIDS, "steps": 2}, "budgets": [0.25, 0.5],
               "readings": ["search", "final", "copying", "leak", "groups", "contents",
                            "information", "positions", "induction", "affinity", "picture"]},
    "untrained": {"base": "plain", "method": {"name": "window", "window": 8, "sinks": 2},
                  "budgets": [0.25], "readings": ["search", "copying"]},
    "matched": {"base": "untrained", "budgets": [0.25, 0.5], "keeps": [0.6, 0.5]},
}  # fmt: skip


def write_tests(folder: Path) -> None:
    """Test documents beside those that training writes."""
    drawn = random.Random(1)
    rows = [{"title": f"test {n}", "file": f"{n}.txt",
             "text": "".join(drawn.choices(string.ascii_lowercase[:6], k=400))}
            for n in range(2)]  # fmt: skip
    path = folder / "data/texts/letters/test.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


@pytest.fixture(scope="session")
def trained_once(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Settings]:
    """A folder with texts, in which ``routed`` has been trained with two seeds; its settings."""
    folder = tmp_path_factory.mktemp("trained")
    training.write_texts(folder)
    write_tests(folder)
    values = training.values(settings.read_yaml(training.ROOT / "params.yaml"), EXPERIMENTS)
    values["readings"] = READINGS
    (folder / "params.yaml").write_text(yaml.safe_dump(values, sort_keys=False))
    chosen = settings.parse(values)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        for seed in (0, 1):
            train("routed", seed, chosen)
    return folder, chosen


@pytest.fixture
def workspace(
    trained_once: tuple[Path, Settings], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Settings:
    """The settings of a copy of that folder, which is the working folder."""
    folder, chosen = trained_once
    shutil.copytree(folder, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    return chosen
