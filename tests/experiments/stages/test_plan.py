"""A change of settings shows in the plans of the stages that depend on it, and in no other."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import yaml

from experiments import settings
from experiments.stages import plan
from experiments.stages.plan import planned
from tests.experiments.training import values
from tests.timed import untrained

SWEPT = {"base": "recipe", "sweep": {"window": [8, 16]}, "seeds": [0]}


@pytest.fixture
def file(params: dict[str, Any]) -> dict[str, Any]:
    return values(params, {"swept": SWEPT})


def differing(file: dict[str, Any], changed: dict[str, Any]) -> set[str]:
    """Names of the plans that differ."""
    before, after = (planned(settings.parse(each)) for each in (file, changed))
    return {name for name in before.keys() | after.keys() if before.get(name) != after.get(name)}


def change(file: dict[str, Any], place: str, value: Any) -> dict[str, Any]:
    """A copy with another value."""
    *path, last = place.split(".")
    out = inner = copy.deepcopy(file)
    for part in path:
        inner = inner[part]
    inner[last] = value
    return out


ROUTED = {"routed/seed0.json", "routed/seed1.json", "routed/read.json"}
RECIPE = {"recipe/seed0.json", "recipe/seed1.json", "recipe/seed2.json", "recipe/read.json"}
SWEEP = {"swept/seed0.json", "swept/read.json"}
ALL_READ = {f"{name}/read.json" for name in ("plain", "adapted", "routed", "recipe", "swept")}


@pytest.mark.parametrize(("place", "value", "names"), [
    ("speed.window", 64, {"speed.json"}),
    ("threads", 7, {"speed.json", "decode.json", "masks.json", "prefill.json",
                    "continuation.json"}),
    ("experiments.routed.method.window", 12, ROUTED | RECIPE),
    ("experiments.swept.sweep.window", [8, 32], SWEEP),
    ("experiments.recipe.budgets", [0.5], {"recipe/read.json", "swept/read.json"}),
    ("experiments.recipe.against", ["plain"], set()),
    ("experiments.recipe.core", True, set()),
    ("experiments.routed.regime.checkpoint_every", 2, set()),
    ("readings.search.windows", 1, ALL_READ),
    ("texts.plays.min_characters", 7, set()),
    ("tolerances.speedup", 0.5, set()),
])  # fmt: skip
def test_a_change_shows_where_it_counts(file: dict[str, Any], place: str, value: Any,
                                        names: set[str]) -> None:  # fmt: skip
    assert differing(file, change(file, place, value)) == names


def test_what_a_start_is_trained_by_counts(file: dict[str, Any]) -> None:
    found = differing(file, change(file, "experiments.adapted.regime", {
        **file["experiments"]["adapted"]["regime"], "rank": 2,
    }))  # fmt: skip
    assert found == {"adapted/seed0.json", "adapted/seed1.json", "adapted/read.json"} | (
        RECIPE | SWEEP
    )


def test_there_is_a_folder_of_downloads_to_copy(
    file: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "params.yaml").write_text(yaml.safe_dump(file), encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    assert plan.main() == 0
    assert (tmp_path / "data/downloads").is_dir()
    assert (tmp_path / "data/plan/swept/read.json").is_file()


def test_a_seed_that_is_not_asked_for_depends_on_nothing(file: dict[str, Any]) -> None:
    found = planned(settings.parse(file))
    assert found["adapted/seed2.json"] == {"scale": "laptop", "status": "seed not asked for"}
    assert found["plain/seed0.json"] == {"scale": "laptop", "status": "nothing to train"}
    # The second seed of `adapted` is all that the recipe's third can start from.
    (start,) = found["recipe/seed2.json"]["cells"]["recipe"]["starts"]
    assert start["seed"] == 0


def test_the_code_of_what_is_used_alone_counts(file: dict[str, Any]) -> None:
    found = planned(settings.parse(file))
    adapted, recipe = (set(found[f"{name}/read.json"]["code"]) for name in ("adapted", "recipe"))
    assert "experiments/regimes/lora.py" in adapted & recipe
    assert "experiments/regimes/centroids.py" in recipe - adapted
    assert "experiments/readings/perplexity.py" in recipe
    assert "experiments/readings/generation.py" not in recipe
    assert "experiments/kernels/timing.py" in found["speed.json"]["code"]
    assert "code" not in found["recipe/seed0.json"]


def test_an_experiment_needs_what_it_trains_on_is_kept_apart_from_and_is_read_with(
    params: dict[str, Any],
) -> None:
    params["texts"] = {"books": {"source": "pg19", "apart": ["unseen"]},
                       "unseen": {"source": "gutenberg"}, "plays": {"source": "shakespeare"},
                       "letters": {"source": "sotu"}}  # fmt: skip
    params["readings"] = {"wide": {"kind": "perplexity", "texts": ["letters"]}}
    params["bases"] = {}
    params["experiments"] = {"large": {"model": "gpt2", "method": {"name": "full"},
                                       "texts": "books", "readings": ["wide"]}}  # fmt: skip
    wanted = planned(settings.parse({**params, **untrained(params, texts="plays")}))
    found = wanted["large/data.json"]
    assert found["models"] == ["gpt2"]
    assert {text["source"] for text in found["texts"].values()} == {"pg19", "gutenberg", "sotu"}
