"""Counts against models that are really built, and against what real training steps hold."""

from __future__ import annotations

import json
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch

import focus
from analysis.paper import paper
from experiments import record, settings
from experiments.costs import shapes, tracing
from experiments.costs.estimate import Hardware, Sizes, estimate
from experiments.costs.machines import usual
from experiments.sources import models
from experiments.stages import cost
from tests import forked

ROOT = Path(__file__).parents[3]
ROUTED = focus.FocusConfig.recipe(num_groups=6)


@pytest.mark.parametrize("name", models.TINY)
def test_parameters_are_those_of_the_built_model(name: str) -> None:
    built = focus.attach(models.load(name, device="cpu")[0], ROUTED)
    counted = shapes.build(shapes.config(name), routed=ROUTED)
    assert shapes.count(counted.parameters()) == shapes.count(built.parameters())
    trained = shapes.count(focus.trainable_parameters(built))
    assert shapes.count(shapes.routers(counted)) == trained > 0


def test_routers_of_gpt2_are_the_papers() -> None:
    model = shapes.build(shapes.config("gpt2"), routed=focus.FocusConfig.paper())
    assert shapes.count(shapes.routers(model)) == 148_224


SIZED = {known.get("source", name): known["parameters"]
         for name, known in paper()["models"].items() if "parameters" in known}  # fmt: skip


@pytest.mark.parametrize(("name", "parameters"), SIZED.items())
def test_sizes_are_those_the_ledger_counts_with(name: str, parameters: int) -> None:
    assert shapes.count(shapes.build(shapes.config(name)).parameters()) == parameters


@pytest.mark.skipif(sys.platform != "linux", reason="asks Linux what a process holds")
@pytest.mark.parametrize(
    ("name", "batch", "context", "all_weights"),
    [
        ("tiny-gpt2", 4, 1024, False),
        ("tiny-llama", 2, 2048, False),
        ("tiny-gemma2", 2, 2048, False),
        ("tiny-llama", 2, 1024, True),
    ],
)
def test_memory_is_what_a_real_training_step_holds(
    name: str, batch: int, context: int, all_weights: bool, tmp_path: Path
) -> None:
    routed = focus.FocusConfig.recipe()
    model = shapes.build(shapes.config(name), routed=routed)
    parts = Sizes.of(model, all_weights).parts("auto", 1)
    model.requires_grad_(all_weights)
    for parameter in shapes.routers(model):
        parameter.requires_grad_()
    # The CPU's kernel forms no block of pairs: `blocked` is what a GPU runs.
    step = tracing.training(model, batch, context, blocked=False)
    measured = (name, batch, context, all_weights)
    code = f"from tests.experiments.costs import measuring; measuring.main{measured}"
    status, said, warned = forked.run(code, tmp_path)
    assert status == 0, warned[-2000:]
    assert sum(parts.values()) + step.activations == pytest.approx(int(said), rel=0.15)


def test_activations_computed_twice_are_not_kept() -> None:
    shape = shapes.config("tiny-llama")
    shape.num_hidden_layers = 8
    once, twice = (
        tracing.training(
            shapes.build(shape, routed=ROUTED), 1, 512, checkpointed=both, blocked=False
        )
        for both in (False, True)
    )
    assert twice.activations < once.activations / 3
    assert 1.2 * once.flops < twice.flops < 1.6 * once.flops


def test_the_operations_of_frozen_weights_are_counted() -> None:
    shape = shapes.config("tiny-llama")
    linear = sum(m.weight.numel() for m in shapes.build(shape).modules()
                 if isinstance(m, torch.nn.Linear))  # fmt: skip
    pairs = 2 * 2 * 2 * 4 * 16 * 256**2  # layers, two products of heads and dimensions
    found = tracing.inference(shapes.build(shape), 1, 256).flops
    head = shape.vocab_size * shape.hidden_size  # of the last token alone
    assert found == 2 * 256 * (linear - head) + 2 * head + pairs


def test_the_cache_holds_what_grouped_heads_have() -> None:
    read = tracing.inference(shapes.build(shapes.config("tiny-llama"), torch.bfloat16), 1, 100)
    assert read.cache == 2 * 2 * 2 * 16 * 100 * 2  # layers, keys and values, heads, dim, bytes


def test_more_devices_hold_less_each() -> None:
    sizes = Sizes(weights=1000, routers=100, root=50, layer=80)
    alone, spread = (sizes.parts("fsdp2", count) for count in (1, 4))
    assert alone == sizes.parts("auto", 1)
    assert spread["weights"] == 275
    assert spread["gathered"] == 0.75 * 210
    assert sizes.parts("ddp", 4)["gradients"] == 200


def test_weights_that_are_trained_have_gradients_and_an_optimiser() -> None:
    sizes = Sizes(weights=1000, routers=100, root=50, layer=80, all_weights=True)
    assert sizes.parts("auto", 1) == {"weights": 1100, "gathered": 0, "gradients": 1100,
                                      "optimiser": 2200}  # fmt: skip
    assert sizes.parts("fsdp2", 4) == {"weights": 275, "gathered": 0.75 * 2 * 210,
                                       "gradients": 275, "optimiser": 550}  # fmt: skip


@cache
def on_cluster(block: str) -> dict[str, Any]:
    return estimate("tiny-llama", settings.load(scale="cluster"), block, Hardware())


def test_routers_with_all_weights_are_planned_as_they_are_trained() -> None:
    row = on_cluster("scratch_focus")
    assert (row["strategy"], row["devices"], row["batch_size"]) == ("fsdp2", 16, 256)
    whole = 4 * (row["parameters"] + row["routers"])  # float32, whatever the model is read in
    assert row["train_gradients"] == pytest.approx(whole / 16, abs=1)
    assert row["train_optimiser"] == pytest.approx(2 * whole / 16, abs=1)
    assert row["infer_weights"] == 2 * row["parameters"] + 4 * row["routers"]


def test_main_memory_is_that_of_a_slice_where_processes_read_parts() -> None:
    parts, drawn = on_cluster("recipe"), on_cluster("scratch_focus")
    embedding = 2 * 257 * 64  # bfloat16
    assert parts["train_host"] == embedding + 8 * 4 * parts["routers"]
    weights = 4 * (2 * drawn["parameters"] + drawn["routers"])  # before and after they are drawn
    assert drawn["train_host"] == 8 * weights  # of a machine's eight; there are sixteen


def test_the_row_has_what_the_scale_says(capsys: pytest.CaptureFixture[str]) -> None:
    assert cost.main(["tiny-llama", "--scale", "cluster"]) == 0
    shown = capsys.readouterr().out
    assert "12,000 steps of 8 windows of 4,096 tokens on 8 device(s), fsdp2, bf16-mixed" in shown
    laptop = estimate("tiny-llama", settings.load(scale="laptop"), "recipe", Hardware())
    assert (laptop["devices"], laptop["strategy"], laptop["context"]) == (1, "auto", 2048)
    twice = estimate("tiny-llama", settings.load(scale="laptop"), "recipe", Hardware(share=0.6))
    assert twice["hours"] == pytest.approx(laptop["hours"] / 2)
    small = Hardware(gibibytes=laptop["train_total"] / 2**30 / 1.5)
    none = estimate("tiny-llama", settings.load(scale="laptop"), "recipe", small)
    assert none["train_devices_needed"] is None or none["train_devices_needed"] > 1


def test_hours_of_the_laptop_are_those_of_the_machine_that_was_measured() -> None:
    machine = usual("laptop")
    paths = (ROOT / "results/laptop/recipe/train").glob("seed*/recipe/run.json")
    seeds = [json.loads(path.read_text()) for path in paths]
    table = pd.read_csv(cost.TABLE)
    known = table[(table["model"] == seeds[0]["settings"]["model"]) & (table["scale"] == "laptop")]
    hours = known["run_flops"].item() / (machine.share * machine.tflops * 1e12) / 3600
    took = sorted(each["notes"]["train_seconds"] / 3600 for each in seeds)
    assert took[0] <= hours <= took[-1]
    assert machine.gibibytes == seeds[0]["hardware"]["memory_gb"]
    assert usual("smoke") == machine
    assert usual("gpu") == usual("cluster") == Hardware()
    row = known.iloc[0].to_dict()
    shown = "\n".join(cost.described(row, machine))
    assert f"on {seeds[0]['hardware']['cpu']} of 2 cores, at 100%" in shown
    assert f"of {machine.gibibytes:g} GiB" in shown
    assert "on H100, at 30% of 989 TFLOP/s" in "\n".join(cost.described(row, usual("gpu")))


def test_hours_say_their_hardware_where_no_result_tells_or_it_is_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cost.main(["tiny-llama", "--scale", "laptop", "--tflops", "5", "--gibibytes", "7"]) == 0
    shown = capsys.readouterr().out
    assert "on a machine of yours, at 30% of 5 TFLOP/s" in shown
    assert "of 7 GiB" in shown
    monkeypatch.chdir(tmp_path)
    assert usual("laptop").tflops == Hardware().tflops
    assert usual("laptop").name.startswith("H100 (no results tell")
    for path in ROOT.glob("results/laptop/recipe/train/seed0/recipe/run.json"):
        record.write_json(path.relative_to(ROOT), json.loads(path.read_text()))
    assert usual("laptop").name.startswith("H100 (no results tell")  # nor what it multiplied


def test_the_committed_table_is_of_this_code() -> None:
    table = pd.read_csv(cost.TABLE)
    row = table[(table["model"] == "gpt2") & (table["scale"] == "gpu")].iloc[0]
    for name, value in estimate("gpt2", settings.load(scale="gpu"), "recipe", Hardware()).items():
        expected = pytest.approx(value) if isinstance(value, float) else value
        assert row[name] == expected, f"{name}: run `python -m experiments.stages.cost --all`"


@pytest.mark.parametrize(("arguments", "known"), [
    (["llama-7b"], "gpt2-xl"), (["gpt2", "--scale", "huge"], "cluster"),
    (["gpt2", "--experiment", "recipes"], "recipe"), (["gpt2", "--experiment", "adapted"], "lora"),
    ([], "llama-2-70b"),
])  # fmt: skip
def test_what_is_unknown_is_told_with_what_is_known(
    arguments: list[str], known: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cost.main(arguments) == 1
    assert known in capsys.readouterr().err
