"""Routers alone: schedule of the gate, files, the control whose gates say nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

import focus
from experiments import trained, training
from experiments.methods.focus import gate_at
from experiments.regimes.centroids import routed_by
from experiments.settings import Centroids
from tests.experiments.regimes.test_base import fitted
from tests.experiments.training import CENTROIDS, ROUTED
from tests.models import tiny, token_ids


def test_the_gate_cools_and_then_is_the_hard_mask() -> None:
    how = Centroids(steps=10, temperature_start=0.8, hard_from=0.5, hard_top_ks=(1, 2))
    assert [round(gate_at(step, how, 0.1)["temperature"], 3) for step in (0, 9)] == [0.8, 0.1]
    assert "gate" not in gate_at(4, how, 0.1)
    hard = [gate_at(step, how, 0.1) for step in (5, 6, 7)]
    assert [each["top_k"] for each in hard] == [2, 1, 2]
    assert all(each["gate"] == "straight_through" for each in hard)
    assert all(gate_at(step, Centroids(steps=3), 0.2) == {"temperature": 0.2} for step in range(3))


def test_trained_routers_are_small_files_that_the_library_loads(work: Any, tmp_path: Path) -> None:
    chosen = work()
    training.train("routed", 0, chosen)
    cell = chosen.cell("routed")
    folder = trained.weights(cell, 0, chosen)
    found = load_file(folder / "adapter_model.safetensors")
    assert {str(found[f"layers.0.{name}"].dtype) for name in ("projection", "centroids")} == {
        "torch.bfloat16"
    }
    assert found["layers.0.batches"] == cell.regime.steps
    model = focus.load_adapter(tiny("tiny-llama"), folder)
    assert {p.dtype for p in focus.trainable_parameters(model)} == {torch.float32}
    built = trained.build(cell, 0, chosen)
    ids = token_ids(1, 60)
    with torch.no_grad(), built.method.applied(built.model, None) as pairs:
        ours = built.model(input_ids=ids).logits
    assert 0 < pairs().density < 1
    assert torch.equal(ours, model(input_ids=ids).logits)
    fresh = focus.attach(tiny("tiny-llama"), focus.FocusConfig(
        **{key: value for key, value in ROUTED.items() if key != "name"}), seed=0)  # fmt: skip
    assert not torch.allclose(ours, fresh(input_ids=ids).logits)


def test_routing_of_another_text() -> None:
    how = focus.FocusConfig(num_groups=4, top_k=1, window=4)
    model = focus.attach(tiny("tiny-llama"), how, seed=0)
    own, other = token_ids(1, 40, seed=1), token_ids(1, 40, seed=2)

    def groups(ids: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            model(input_ids=ids)
        return focus.memberships(model)[0].query

    usual, wanted = groups(own), groups(other)
    with routed_by(model, other):
        assert torch.equal(groups(own), wanted)
    assert torch.equal(groups(own), usual)
    assert not torch.equal(usual, wanted)


def test_shuffled_gates_train_other_routers_on_the_same_windows(work: Any, tmp_path: Path) -> None:
    control = {"base": "routed", "regime": {**CENTROIDS, "shuffled": True}}
    chosen = work(control=control)
    usual, shuffled = (fitted(chosen, n, tmp_path / n) for n in ("routed", "control"))
    assert usual.trained_parameters == shuffled.trained_parameters
    assert shuffled.losses[0] != usual.losses[0]
    batches = [int(t) for n, t in shuffled.state_dict().items() if n.endswith("batches")]
    assert batches == [len(shuffled.losses)] * 2  # the other text's pass taught no potentials


def test_heavy_hitters_are_found_before_routers_are_trained_on(
    work: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(focus.observed, "SETTLED", 8)  # documents here are short
    beside = {"base": "routed", "start": "recipe", "method": {**ROUTED, "heavy_hitters": 0.1},
              "regime": {**CENTROIDS, "hard_from": 0.0, "steps": 2}, "seeds": [0]}  # fmt: skip
    alone = {**beside, "method": ROUTED}
    chosen = work(beside=beside, alone=alone)
    ids = token_ids(1, 60)
    built = {}
    for name in ("beside", "alone"):
        training.train(name, 0, chosen)
        built[name] = trained.build(chosen.cell(name), 0, chosen)
        with torch.no_grad(), built[name].method.applied(built[name].model, None) as pairs:
            built[name].model(input_ids=ids)
        assert 0 < pairs().distant_density < 1
    folder = trained.weights(chosen.cell("beside"), 0, chosen)
    found = load_file(folder / "adapter_model.safetensors")
    assert found["layers.0.heavy_bias"].dtype == torch.float32
    weights = [next(iter(each.model.focus_state.routers.values())) for each in built.values()]
    assert weights[0].heavy_weight.abs().sum() > 0
    assert not hasattr(weights[1], "heavy_weight")


def test_groups_are_shared_out_after_training_or_without_any(
    work: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(focus.observed, "SETTLED", 8)
    method = {**ROUTED, "probe": "multi_probe", "heavy_hitters": 0.1, "allocated": True}
    apart = {"base": "routed", "start": "recipe", "method": method, "seeds": [0],
             "regime": {**CENTROIDS, "hard_from": None, "steps": 0}}  # fmt: skip
    read = {"base": "apart", "start": "apart", "regime": None}
    chosen = work(apart=apart, read=read)
    training.train("apart", 0, chosen)
    folder = trained.weights(chosen.cell("apart"), 0, chosen)
    found = load_file(folder / "adapter_model.safetensors")
    start = load_file(trained.weights(chosen.cell("recipe"), 0, chosen) / folder.name.replace(
        "adapter", "adapter_model.safetensors"))  # fmt: skip
    for name in ("centroids", "potentials"):
        assert torch.equal(found[f"layers.0.{name}"], start[f"layers.0.{name}"])
    assert found["layers.0.taken_at"].dtype == torch.float32
    ids = token_ids(1, 60)
    logits = []
    for name in ("apart", "read"):
        built = trained.build(chosen.cell(name), 0, chosen)
        with torch.no_grad(), built.method.applied(built.model, None) as pairs:
            logits.append(built.model(input_ids=ids).logits)
        assert 0 < pairs().distant_density < 1
        assert built.model.focus_state.config.allocated
    assert torch.equal(*logits)
