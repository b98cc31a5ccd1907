"""What methods train and compute, counted, beside networks that are there."""

from __future__ import annotations

import json
from typing import Any

import pytest
from peft import inject_adapter_in_model
from torch import nn

from analysis import choosing, rivals
from analysis.cells import Cell
from analysis.pages import rivals as page
from analysis.results import Results
from experiments import registry
from experiments.methods.base import built
from experiments.regimes.lora import lora_config
from experiments.settings import Lora
from experiments.settings.schema import parse
from tests.analysis.result_files import RECIPE, ROUTERS, write_adapted, write_masks
from tests.models import tiny

DISTIL = {"name": "distil", "steps": 90}
TARGETS = {"name": "lora", "rank": 4, "targets": ["q_proj", "k_proj", "v_proj", "o_proj"]}
MODEL = "smollm2-135m-instruct"
TOKENS = 2048
DISTANT = (TOKENS - 132) * (TOKENS - 131) / 2


def known(results: Results, layers: int = 2, width: int = 64, heads: int = 4) -> Results:
    """The same, with the adapter of a recipe on a model of this shape."""
    write_masks(results.root, "recipe", {0.125: 0.1}, regime=ROUTERS)
    base = {"hidden_size": width, "query_heads": [heads] * layers, "key_heads": [2] * layers}
    folder = results.root / "recipe" / "train" / "seed0" / "recipe" / "adapter"
    folder.mkdir(parents=True)
    (folder / "adapter_config.json").write_text(json.dumps({"base": base}))
    return Results(results.base)


def cell(name: str, regime: Any = None, start: str | None = None, **fields: Any) -> Cell:
    return Cell(name, name, MODEL, start=start, method={"name": name, **fields},
                regime=regime or {"name": "none"})  # fmt: skip


def added(module: nn.Module, *names: str) -> int:
    return sum(each.numel() for name, each in module.named_parameters()
               if any(part in name for part in names))  # fmt: skip


@pytest.mark.parametrize(("name", "parts"), [("seer", ("selectors",)), ("indexer", ("selectors",)),
                                             ("focus", ("projection", "centroids"))])  # fmt: skip
def test_what_is_trained_is_what_a_model_gets(results, name, parts):
    fields = {key: value for key, value in RECIPE.items() if key != "name"}
    own = fields if name == "focus" else {}
    model = tiny("tiny-llama")
    built(registry.find("method", name), own, 0).install(model)
    regime = ROUTERS if name == "focus" else DISTIL
    found = choosing.trained(known(results), cell(name, regime, **own))
    assert found == added(model, *parts) > 0


def test_lora_is_counted_by_its_projections(results):
    model = tiny("tiny-llama")
    settings = parse(Lora, TARGETS | {"steps": 1, "context": 8, "learning_rate": 0.1}, "regime")
    inject_adapter_in_model(lora_config(settings), model, "default")
    assert choosing.trained(known(results), cell("window", TARGETS)) == added(model, "lora_")


def test_starts_count_once_up_to_the_model_that_all_run_on(results):
    write_adapted(results.root)
    results = known(results)
    once = choosing.trained(results, results.cells["recipe"])
    again = cell("focus", ROUTERS, "recipe", **{k: v for k, v in RECIPE.items() if k != "name"})
    assert choosing.trained(results, again) == once
    both = choosing.trained(results, cell("focus", TARGETS, "recipe"))
    assert both == once + choosing.trained(results, cell("window", TARGETS, "adapted"))


def test_projections_by_other_names_are_not_counted(results):
    other = TARGETS | {"targets": ["c_attn"]}
    assert choosing.trained(known(results), cell("window", other)) is None


@pytest.mark.parametrize(
    ("name", "pairs", "work"),
    [("quest", 100 / 16, 12.5), ("moba", 100 / 64, 100 / 64), ("xattention", 100 / 64, 12.5),
     ("oracle_heads", 100, 100), ("sparq", 100, 100), ("window", 0, 0)],
)  # fmt: skip
def test_scores_are_counted_in_products_of_a_head(results, name, pairs, work):
    """Heads of 16: SparQ's 16 components are all there are."""
    assert choosing.work(known(results), cell(name), TOKENS, None) == (pairs, work)


def test_maps_weigh_less_in_longer_texts(results):
    results = known(results)
    recipe = results.cells["recipe"]
    numbers = choosing.trained(results, recipe) / 2  # of a layer, each used once a token
    pairs, work = choosing.work(results, recipe, TOKENS, None)
    assert (pairs, work) == (0, pytest.approx(100 * numbers * TOKENS / (64 * DISTANT)))
    assert choosing.work(results, recipe, 8 * TOKENS, None)[1] < work / 7


def test_what_is_not_counted_is_none(results):
    results = known(results)
    assert choosing.work(results, cell("performer"), TOKENS, None) == (None, None)
    assert choosing.work(results, cell("sparq_groups"), TOKENS, None) == (None, None)
    pairs, work = choosing.work(results, cell("routing_transformer"), TOKENS, None)
    assert pairs == 0
    assert work != work  # not a number


def test_kernels_run_groups_and_windows_alone():
    runs = {name for name in registry.names("method") if choosing.fast(cell(name))}
    assert {"focus", "window", "heavy_window", "random"} <= runs
    assert not runs & {"sparq_groups", "quest", "performer", "seer"}


def test_tables_tell_what_methods_train_and_score(results):
    write_adapted(results.root, reading="rivals")
    beside = {"reading": "rivals", "against": ["adapted"]}
    write_masks(results.root, "recipe", {0.125: 0.0}, regime=ROUTERS, **beside)
    plain = {"name": "sparq", "reallocate": False}
    write_masks(results.root, "sparq_plain", {0.125: 0.1}, method=plain, **beside)
    results = known(results)
    own = rivals.table(results).set_index("experiment")
    assert own.loc["sparq_plain", "trained_parameters"] == 0
    assert own.loc["sparq_plain", "left_out"].endswith("the mean value for keys left out")
    assert own.loc["recipe", "trained_parameters"] == choosing.trained(
        results, results.cells["recipe"])  # fmt: skip
    lines = page.methods(results).splitlines()
    assert lines[2].startswith("| ours (recipe) | 15,744 | 0.0% | ")
    assert lines[3].startswith("| SparQ | 0 | 100.0% | 100.0% | 100.0% | no | yes | a second copy")
