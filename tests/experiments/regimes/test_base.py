"""What all regimes share: steps, schedule, hooks, frozen weights, validation, accumulation."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from experiments import registry
from experiments.regimes.base import Regime, warmup_cosine
from experiments.regimes.fitting import fit
from experiments.settings import Settings
from experiments.texts.training import TrainingData
from tests.experiments.training import CENTROIDS, LORA


def new(chosen: Settings, name: str, seed: int = 0) -> Regime:
    cell = chosen.cell(name)
    return registry.find("regime", cell.regime.name)(cell, seed, chosen)


def fitted(chosen: Settings, name: str, folder: Path, seed: int = 0, **hooks: Any) -> Regime:
    regime = new(chosen, name, seed)
    for hook, calls in hooks.items():
        getattr(regime, hook).extend(calls)
    fit(regime, TrainingData(regime.cell, seed, chosen), folder / "checkpoints")
    return regime


def trained_tensors(regime: Regime) -> torch.Tensor:
    return torch.cat([p.detach().flatten() for p in regime.parameters() if p.requires_grad])


def test_unknown_regimes_are_refused_by_field_and_the_known_listed() -> None:
    assert set(registry.names("regime")) == {
        "centroids",
        "distil",
        "full",
        "joint",
        "lora",
        "scratch",
        "scratch_joint",
    }
    with pytest.raises(ValueError, match=r"regime\.name: 'dora' is no regime.*lora"):
        registry.find("regime", "dora")


def test_schedule_rises_to_one_and_falls_to_zero() -> None:
    factors = [warmup_cosine(step, 10, 60) for step in range(61)]
    assert factors[0] == pytest.approx(0.1)
    assert max(factors) == factors[10] == 1.0
    assert factors[60] == pytest.approx(0.0)
    assert factors[10:] == sorted(factors[10:], reverse=True)


def test_a_frozen_weight_that_changes_is_an_error(work: Any, tmp_path: Path) -> None:
    def spoil(regime: Regime, step: int) -> None:
        with torch.no_grad():
            regime.model.model.embed_tokens.weight[0, 0] += 1

    with pytest.raises(RuntimeError, match="a frozen weight changed"):
        fitted(work(), "routed", tmp_path, after_step=[spoil])


def test_auxiliary_losses_are_learnt_and_callbacks_see_every_step(
    work: Any, tmp_path: Path
) -> None:
    chosen = work()
    steps: list[int] = []
    plain = fitted(chosen, "adapted", tmp_path / "plain", after_step=[lambda _, n: steps.append(n)])
    assert steps == [1, 2, 3, 4]

    def shrink(regime: Regime, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        return 10 * sum(p.square().sum() for p in regime.parameters() if p.requires_grad)

    shrunk = fitted(chosen, "adapted", tmp_path / "shrunk", auxiliary=[shrink])
    assert trained_tensors(shrunk).norm() < 0.98 * trained_tensors(plain).norm()
    assert shrunk.losses[0] > plain.losses[0]


def test_two_batches_of_one_are_one_step_of_two(work: Any, tmp_path: Path) -> None:
    parts = {**LORA, "steps": 3, "accumulate": 2, "validate_every": 1}
    chosen = work(
        parts={"base": "adapted", "regime": parts},
        one={"base": "adapted", "regime": {**LORA, "steps": 3, "batch_size": 2}},
    )
    parts, one = (fitted(chosen, name, tmp_path / name) for name in ("parts", "one"))
    assert parts.losses == pytest.approx(one.losses, rel=1e-5)
    # Adam divides by the gradient's size: of a tiny one the rounding shows, and processors differ.
    near = 2e-3 * LORA["learning_rate"]
    assert torch.allclose(trained_tensors(parts), trained_tensors(one), atol=near)
    assert list(parts.validation) == [1, 2, 3]
    assert one.validation == {}
    assert parts.validation[3] < parts.validation[1]


def test_activations_that_are_computed_again_change_nothing(work: Any, tmp_path: Path) -> None:
    again = {"base": "routed", "regime": {**CENTROIDS, "checkpoint_activations": True}}
    chosen = work(again=again)
    calls: list[Any] = []
    checkpointed = new(chosen, "again")
    checkpointed.configure_model()
    inner = checkpointed.model.model.layers[0].input_layernorm
    inner.register_forward_hook(lambda *_: calls.append(0))
    data = TrainingData(checkpointed.cell, 0, chosen)
    fit(checkpointed, data, tmp_path / "again")
    assert len(calls) == 2 * len(checkpointed.losses)  # forward, and again in the backward pass
    plain = fitted(chosen, "routed", tmp_path / "plain")
    assert checkpointed.losses == pytest.approx(plain.losses, rel=1e-6)
    own, other = (regime.state_dict() for regime in (checkpointed, plain))
    assert all(torch.allclose(own[name], other[name], atol=1e-5) for name in other)


def test_a_checkpoint_holds_what_is_trained_and_no_more(work: Any, tmp_path: Path) -> None:
    regime = fitted(work(), "routed", tmp_path)
    (path,) = (tmp_path / "checkpoints").glob("*.ckpt")
    found = torch.load(path, weights_only=False)["state_dict"]
    assert {name.rsplit(".", 1)[1] for name in found} == {
        "projection", "centroids", "potentials", "batches"
    }  # fmt: skip
    assert len(found) == 4 * 2
    assert regime.trained_parameters == sum(
        t.numel() for n, t in found.items() if n.endswith(("projection", "centroids"))
    )


def test_a_loss_that_is_not_finite_says_what_to_do(work: Any, tmp_path: Path) -> None:
    chosen = work(wild={"base": "adapted", "regime": {**LORA, "learning_rate": 1e30}})
    with pytest.raises(ValueError, match=r"experiments\.wild\.regime\.learning_rate: loss is"):
        fitted(chosen, "wild", tmp_path)
