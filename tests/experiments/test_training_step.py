"""The stage training_step at its smallest: what it times is the training step it claims to be."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

import focus
from experiments import lit, settings, timing
from experiments.data import save_split
from experiments.kernel_settings import TrainingStepSettings
from experiments.record import Run
from experiments.stages import training_step as stage
from focus import gating
from tests.models import tiny, token_ids

PLAN = TrainingStepSettings((64,), groups=4, window=8, sinks=2)
MODELS = ("tiny-llama", "tiny-gpt2", "tiny-gemma2")


def attached(name: str, gate: str) -> torch.nn.Module:
    config = focus.FocusConfig.recipe(num_groups=4, window=8, sinks=2, gate=gate)
    return focus.attach(tiny(name), config, seed=0)


def learning(model: torch.nn.Module) -> torch.nn.Module:
    """In training as the retrofit has it, without checkpoints."""
    for layer in model.focus_state.layers.values():
        if layer.router is not None:
            layer.router.train()
    return model


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("gate", ["log", "sparse_log"])
def test_loss_and_gradients_are_those_of_the_plain_step(name: str, gate: str) -> None:
    ids = token_ids(1, 70)
    plain = learning(attached(name, gate))
    wanted = lit.gated_next_token_loss(plain, ids)
    wanted.backward()
    model = stage.checkpointed(attached(name, gate))
    loss, _ = stage.step(model, ids, gate)
    torch.testing.assert_close(loss, wanted.detach())
    gradients = [p.grad for p in focus.trainable_parameters(plain)]
    assert all(gradient.abs().sum() > 0 for gradient in gradients)
    for parameter, gradient in zip(focus.trainable_parameters(model), gradients, strict=True):
        torch.testing.assert_close(parameter.grad, gradient, rtol=1e-4, atol=1e-7)


@pytest.mark.parametrize("name", MODELS)
def test_full_attention_is_differentiated_down_to_the_text(name: str) -> None:
    ids = token_ids(1, 40)
    loss, gradient = stage.step(stage.checkpointed(attached(name, "log")), ids, "full")
    model = tiny(name)
    embedded = model.get_input_embeddings()(ids).detach().requires_grad_()
    logits = model(inputs_embeds=embedded, use_cache=False).logits[0, :-1]
    wanted = torch.nn.functional.cross_entropy(logits, ids[0, 1:])
    wanted.backward()
    torch.testing.assert_close(loss, wanted.detach())
    torch.testing.assert_close(gradient, embedded.grad, rtol=1e-4, atol=1e-7)


@pytest.mark.parametrize("piece", [1, 7, 39, 1000])
def test_the_loss_does_not_depend_on_the_pieces(piece: int) -> None:
    ids, model = token_ids(1, 40), tiny("tiny-gemma2")
    embedded = model.get_input_embeddings()(ids).detach()
    with torch.no_grad():
        found = stage.loss_in_pieces(model, embedded, ids, piece)
        torch.testing.assert_close(found, lit.next_token_loss(model, ids))


@pytest.mark.parametrize("name", ["full", "log", "sparse_log"])
def test_every_method_runs_each_layer_again(name: str) -> None:
    """Whatever runs with fewer passes than another would win by that."""
    model, calls = stage.checkpointed(attached("tiny-llama", "log")), []
    for layer in model.base_model.layers:
        layer.mlp.register_forward_pre_hook(lambda *_: calls.append(1))
    stage.step(model, token_ids(1, 40), name)
    assert len(calls) == 2 * len(model.base_model.layers)


def test_all_but_the_routers_stays_in_evaluation_mode() -> None:
    model = stage.checkpointed(attached("tiny-gpt2", "log"))
    assert not any(m.training for m in model.modules() if isinstance(m, torch.nn.Dropout))
    assert all(m.training for m in model.modules() if isinstance(m, focus.Router))


def test_gates_that_form_every_pair_stop_where_they_are_told() -> None:
    plan = dataclasses.replace(PLAN, quadratic_until=64)
    cpu, cuda = torch.device("cpu"), torch.device("cuda")
    assert stage.methods(plan, 64, cpu) == ["full", "log", "sparse_log"]
    assert stage.methods(plan, 65, cpu) == ["full", "sparse_log"]
    with pytest.raises(ValueError, match=r"training_step\.lengths: no gate .* at 65 tokens"):
        stage.methods(plan, 65, cuda)
    assert stage.methods(plan, 64, cuda) == ["full", "log", "sparse_log"]


def test_ratios_are_taken_turn_by_turn() -> None:
    found = timing.compared([4.0, 6.0, 2.0], [1.0, 3.0, 2.0])
    assert (found["median_s"], found["low_s"], found["high_s"]) == (2.0, 1.0, 3.0)
    assert (found["speedup"], found["speedup_low"], found["speedup_high"]) == (2.0, 1.0, 4.0)


@pytest.fixture
def chosen(params: dict, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> settings.Settings:
    """Settings for a tiny model and a training book of 200 tokens in the working directory."""
    monkeypatch.chdir(tmp_path)
    params["model"]["name"] = "tiny-llama"
    params["training_step"] = {"lengths": [48, 96], "quadratic_until": 48, "groups": 4,
                               "window": 8, "sinks": 2, "repetitions": 2}  # fmt: skip
    (tmp_path / "data" / "corpus").mkdir(parents=True)
    words = np.random.default_rng(0).integers(0, 256, 200).tolist()
    save_split(tmp_path / "data" / "corpus" / "train.npz", [("book", words)])
    return settings.parse(params)


def test_the_density_is_of_the_pairs_that_the_gate_forms(monkeypatch: pytest.MonkeyPatch) -> None:
    model = stage.prepared("tiny-llama", PLAN, seed=0)
    ids, formed, kept_log = token_ids(1, 64), [], gating._kept_log

    def seen(assignments: torch.Tensor, top_k: int) -> torch.Tensor:
        formed.append(kept_log(assignments, top_k))
        return formed[-1]

    monkeypatch.setattr(gating, "_kept_log", seen)
    with torch.no_grad(), focus.mode(model, "soft", gate="sparse_log"):
        model.base_model(ids, use_cache=False)
    position = torch.arange(64)
    distance = position[:, None] - position
    near = (distance >= 0) & ((distance < PLAN.window) | (position < PLAN.sinks))
    shares = []
    for query, key in zip(formed[::2], formed[1::2], strict=True):
        met = (query.isfinite().float() @ key.isfinite().float().transpose(-1, -2)) > 0
        kept = near | (met & (distance >= 0))
        shares.append(float(kept.float().sum((-1, -2)).mean()) / (64 * 65 / 2))
    found = stage.density(model, ids)
    assert found < 1
    assert found == pytest.approx(sum(shares) / len(shares), rel=1e-5)


def test_the_stage_writes_what_the_analysis_reads(chosen: settings.Settings) -> None:
    with Run("training_step", None, chosen) as run:
        stage.training_step(run, chosen)
    table = pd.read_csv("results/training_step/table.csv")
    methods = table.groupby("length")["method"].agg(list).to_dict()
    assert methods == {48: ["full", "log", "sparse_log"], 96: ["full", "sparse_log"]}
    assert (table[["median_s", "speedup"]] > 0).all(axis=None)
    assert (table["low_s"] <= table["median_s"]).all()
    assert (table["repetitions"] == 2).all()
    sparse = table["method"] == "sparse_log"
    assert (table.loc[sparse, "density"] < 1).all()
    assert (table.loc[~sparse, "density"] == 1).all()
    metrics = json.loads(Path("results/training_step/metrics.json").read_text())
    assert {"log.48.speedup", "sparse_log.96.speedup_low"} < set(metrics)
    assert json.loads(Path("results/training_step/run.json").read_text())["dtype"] == "float32"


def test_a_text_that_is_too_short_is_refused(chosen: settings.Settings, tmp_path: Path) -> None:
    plan = dataclasses.replace(chosen.training_step, lengths=(48, 201))
    with (
        pytest.raises(ValueError, match=r"training_step\.lengths: .* only 200 tokens"),
        Run("training_step", None, chosen) as run,
    ):
        stage.training_step(run, dataclasses.replace(chosen, training_step=plan))
    assert not (tmp_path / "results/training_step/metrics.json").exists()


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("lengths", [], "training_step.lengths: must name"),
        ("lengths", [17, 64], "training_step.lengths: must be >= 18"),
        ("gates", ["hard"], "training_step.gates[0]: must be one of"),
        ("gates", ["log", "log"], "training_step.gates: must name"),
        ("top_k", 19, "training_step.top_k: 19 is above groups = 18"),
        ("quadratic_until", -1, "training_step.quadratic_until: must be >= 0"),
        ("repetitions", 0, "training_step.repetitions: must be >= 1"),
        ("dtype", "int8", "training_step.dtype: must be one of"),
        ("steps", 1, "training_step.steps: unknown"),
    ],
)
def test_nonsense_settings_are_refused(
    params: dict, name: str, value: object, message: str
) -> None:
    params["training_step"][name] = value
    with pytest.raises(ValueError) as caught:
        settings.parse(params)
    assert str(caught.value).startswith(message)
