"""Routers with all weights: what is trained, what is watched, what is saved."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch

import focus
from experiments import registry, trained, training
from experiments.regimes.base import next_token_loss
from experiments.regimes.joint import alive, rank
from tests.experiments.regimes.test_base import fitted, new
from tests.experiments.training import ROUTED
from tests.models import tiny, token_ids

METHOD = {"name": "focus", "num_groups": 4, "top_k": 1, "window": 8, "sinks": 2}
HOW = {"name": "joint", "steps": 4, "context": 64, "warmup_steps": 1, "watch_every": 2,
       "weights_rate": 0.01, "checkpoint_every": 3}  # fmt: skip


def block(mitigation: str, **regime: Any) -> dict[str, Any]:
    balance = registry.find("mitigation", mitigation).BALANCE
    return {"base": "plain", "method": {**METHOD, "balance": balance},
            "regime": {**HOW, "mitigation": mitigation, **regime}}  # fmt: skip


@pytest.mark.parametrize("weights", [True, False])
def test_weights_and_routers_are_trained_saved_and_read(work: Any, weights: bool) -> None:
    chosen = work(both=block("sinkhorn", weights=weights))
    training.train("both", 0, chosen)
    cell = chosen.cell("both")
    built = trained.build(cell, 0, chosen)
    plain = tiny("tiny-llama")
    ids = token_ids(1, 60)
    with torch.no_grad():
        with focus.mode(built.model, "full"):
            ours = built.model(input_ids=ids).logits
        theirs = plain(input_ids=ids).logits
    assert torch.equal(ours, theirs) != weights  # weights that are frozen are the model's own
    trace = pd.read_csv(trained.folder(cell, 0, chosen) / "groups.csv")
    assert sorted(trace["step"].unique()) == [1, 2, 4]
    assert trace["largest_group"].between(0.25, 1).all()
    assert trace["alive"].between(1, 4).all()
    first, last = (trace[trace["step"] == step] for step in (1, 4))
    assert (first["drift"] == 0).all()
    assert (last["drift"] > 0).all()
    assert (last["shift"].iloc[0] > 0) == weights  # before the first gate only weights can
    assert last["agreement"].between(0, 1).all()


def test_a_killed_run_goes_on_with_its_trace(work: Any, tmp_path: Path) -> None:
    chosen = work(both=block("sinkhorn"))

    def kill(regime: Any, step: int) -> None:
        if step == 4:
            raise KeyboardInterrupt

    with pytest.raises(BaseException):  # noqa: B017 - Lightning's own, by version
        fitted(chosen, "both", tmp_path, after_step=[kill])
    again = fitted(chosen, "both", tmp_path)
    assert [each["step"] for each in again.trace[::2]] == [1, 2, 4]
    whole = fitted(chosen, "both", tmp_path / "whole")
    one, other = (pd.DataFrame(each.trace) for each in (again, whole))
    pd.testing.assert_frame_equal(one, other, rtol=1e-4)  # movements since the first step, too


def test_a_mitigation_of_another_balance_is_refused_by_field(work: Any, tmp_path: Path) -> None:
    wrong = {**block("softmax"), "method": {**METHOD, "balance": "sinkhorn"}}
    chosen = work(both=wrong)
    with pytest.raises(ValueError, match=r"both\.method\.balance: mitigation softmax is of"):
        fitted(chosen, "both", tmp_path)


def test_routers_of_several_sides_are_refused_by_field(work: Any, tmp_path: Path) -> None:
    chosen = work(both={**block("sinkhorn"), "method": {**ROUTED, "balance": "sinkhorn"}})
    with pytest.raises(ValueError, match=r"both\.method\.routers: .*layer or paper"):
        fitted(chosen, "both", tmp_path)


def test_unknown_mitigations_are_refused_and_the_known_listed(work: Any) -> None:
    with pytest.raises(ValueError, match=r"mitigation: must be one of .*recluster.*'hope'"):
        work(both={**block("softmax"), "regime": {**HOW, "mitigation": "hope"}})


@pytest.mark.parametrize("weights", [True, False])
def test_weights_that_are_trained_are_float32(work: Any, weights: bool) -> None:
    chosen = work(both={**block("sinkhorn", weights=weights), "dtype": "bfloat16"})
    regime = new(chosen, "both")
    regime.configure_model()
    wanted = torch.float32 if weights else torch.bfloat16
    assert regime.model.get_input_embeddings().weight.dtype == wanted


@pytest.mark.parametrize(("mitigation", "kept"), [("sinkhorn", 0), ("ema", 2)])
def test_what_is_computed_again_is_not_kept(work: Any, mitigation: str, kept: int) -> None:
    chosen = work(both=block(mitigation, checkpoint_activations=True))
    regime = new(chosen, "both")
    regime.configure_model()
    calls: list[Any] = []
    regime.routers[0].register_forward_hook(lambda *_: calls.append(0))
    with regime.method.training(regime.model, 0, regime.settings):
        loss = next_token_loss(regime.model, token_ids(1, 40))
    seen = dict(regime.seen.logits)
    regime.backward(loss)
    assert len(calls) == 2
    assert all(regime.seen.logits[router] is logits for router, logits in seen.items())
    assert len(regime.seen.hidden) == kept  # without need they are as large as what is saved


def test_a_group_lives_from_a_hundredth_of_the_tokens_on() -> None:
    groups = torch.tensor([0] * 99 + [1] + [2] * 100)
    assert alive(torch.nn.functional.one_hot(groups, 4)[None, None]) == 2


def test_rank_counts_the_dimensions_that_are_filled() -> None:
    torch.manual_seed(0)
    points = torch.randn(2000, 6)
    assert rank(points) == pytest.approx(6, abs=0.3)
    assert rank(points[:, :1] @ torch.ones(1, 6)) == pytest.approx(1, abs=1e-3)


def test_from_scratch_starts_with_drawn_weights_and_is_read_back(work: Any) -> None:
    how = {**HOW, "name": "scratch_joint", "weights_rate": 0.001}
    chosen = work(both={"base": "plain", "method": {**METHOD, "balance": "sinkhorn"},
                        "regime": how})  # fmt: skip
    training.train("both", 0, chosen)
    built = trained.build(chosen.cell("both"), 0, chosen)
    drawn, _ = trained.begin(chosen.cell("both"), 0, chosen)
    pretrained = dict(tiny("tiny-llama").named_parameters())
    read = dict(built.model.named_parameters())
    changed = 0
    for name, start in drawn.named_parameters():
        if "focus_router" in name:
            changed += not torch.equal(read[name], start)
            continue
        near = (read[name] - start).norm() / start.norm()
        assert near < 0.2, name  # four small steps from what was drawn
        if start.std() > 0:  # a matrix: drawn anew
            assert not torch.allclose(read[name], pretrained[name], atol=1e-3), name
    assert changed
