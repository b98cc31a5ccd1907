"""A folder in which experiments train as in the repository: a tiny model, random letters."""

from __future__ import annotations

import json
import random
import string
from collections.abc import Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any

import yaml

from experiments import settings
from experiments.settings import Settings
from tests.timed import untrained

ROOT = Path(__file__).resolve().parents[2]
ROUTED = {"name": "focus", "num_groups": 4, "top_k": 2, "window": 8, "sinks": 2,
          "probe": "multi_probe", "routers": "query_head"}  # fmt: skip
CENTROIDS = {"name": "centroids", "steps": 8, "context": 64, "batch_size": 2, "warmup_steps": 2,
             "hard_from": 0.5, "temperature_start": 0.3, "checkpoint_every": 3}  # fmt: skip
LORA = {"name": "lora", "steps": 4, "context": 64, "rank": 4, "alpha": 8, "learning_rate": 0.01,
        "warmup_steps": 1, "checkpoint_every": 3}  # fmt: skip
EXPERIMENTS: dict[str, Any] = {
    "plain": {"model": "tiny-llama", "dtype": "float32", "texts": "letters", "readings": ["search"],
              "method": {"name": "full"}},
    "adapted": {"base": "plain", "seeds": [0, 1], "regime": LORA},
    "routed": {"base": "plain", "seeds": [0, 1], "method": ROUTED, "regime": CENTROIDS},
    "recipe": {"base": "routed", "start": "adapted", "seeds": [0, 1, 2]},
}  # fmt: skip


def values(params: dict[str, Any], experiments: dict[str, Any] | None = None) -> dict[str, Any]:
    """params.yaml's, with these experiments (and :data:`EXPERIMENTS`) alone, free to be changed."""
    texts = {**params["texts"], "letters": {"source": "letters"}}
    readings = {"search": {**params["readings"]["search"], "texts": ["letters"]}}
    both = deepcopy({**EXPERIMENTS, **(experiments or {})})
    return {**params, **untrained(params, texts="letters"), "texts": texts, "readings": readings,
            "bases": {}, "experiments": both}  # fmt: skip


def write_texts(folder: Path) -> None:
    """Documents of random letters, in place of what the stage `data` writes."""
    drawn = random.Random(0)
    for side, count in (("train", 5), ("validation", 2)):
        path = folder / "data/texts/letters" / f"{side}.jsonl"
        path.parent.mkdir(parents=True, exist_ok=True)
        rows = [{"title": f"{side} {n}", "file": f"{n}.txt",
                 "text": "".join(drawn.choices(string.ascii_lowercase[:6], k=400))}
                for n in range(count)]  # fmt: skip
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def workspace(folder: Path, params: dict[str, Any], experiments: dict[str, Any] | None = None,
              timed: Sequence[str] = ()) -> Settings:  # fmt: skip
    """Texts and a params.yaml in a folder; the settings that it holds. ``timed``: experiments that
    prefill times."""
    folder.mkdir(parents=True, exist_ok=True)
    write_texts(folder)
    found = values(params, experiments)
    found["prefill"]["experiments"] = list(timed)
    (folder / "params.yaml").write_text(yaml.safe_dump(found, sort_keys=False))
    return settings.parse(found)
