"""Each way to keep groups of one size does what it says to a router."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from experiments import registry
from experiments.mitigations.auxiliary import parts
from tests.experiments.regimes.test_base import fitted, new
from tests.experiments.regimes.test_joint import block


def centroids(regime: Any) -> torch.Tensor:
    return torch.stack([router.centroids.detach().clone() for router in regime.routers])


def evenness(regime: Any) -> float:
    last = max(each["step"] for each in regime.trace)
    return sum(each["one_plus_cv2"] for each in regime.trace if each["step"] == last)


@pytest.mark.parametrize("name", registry.names("mitigation"))
def test_each_trains_and_moves_the_routers(work: Any, tmp_path: Path, name: str) -> None:
    chosen = work(one=block(name))
    before = new(chosen, "one")
    before.configure_model()
    after = fitted(chosen, "one", tmp_path)
    assert not torch.equal(centroids(before), centroids(after))
    assert len(after.losses) == 4


def test_losses_are_least_for_sure_and_even_assignments() -> None:
    even = 50 * torch.eye(4).repeat(8, 1)[None]
    entropy, balance = parts(even)
    assert float(entropy) == pytest.approx(0, abs=1e-6)
    assert float(balance) == pytest.approx(1)
    one = 50 * torch.eye(4)[:1].repeat(32, 1)[None]
    assert float(parts(one)[1]) == pytest.approx(4)
    assert float(parts(torch.zeros(1, 32, 4))[0]) == pytest.approx(torch.log(torch.tensor(4.0)))


def test_stop_gradient_leaves_the_weights_to_the_gate(work: Any, tmp_path: Path) -> None:
    chosen = work(one=block("stop_gradient"), other=block("softmax"))
    found = {}
    for name in ("one", "other"):
        regime = new(chosen, name)
        regime.configure_model()
        with regime.method.training(regime.model, 0, regime.settings):
            regime.model(input_ids=torch.arange(40)[None] % 20, use_cache=False)
        loss = sum(parts(logits)[0] for logits in regime.seen.logits.values())
        loss.backward()
        found[name] = regime.model.get_input_embeddings().weight.grad
    assert found["one"] is None
    assert found["other"].abs().max() > 0


def test_ema_keeps_gradients_from_centroids(work: Any) -> None:
    regime = new(work(one=block("ema")), "one")
    regime.configure_model()
    with regime.method.training(regime.model, 0, regime.settings):
        regime.model(input_ids=torch.arange(40)[None] % 20, use_cache=False).logits.sum().backward()
    regime.on_after_backward()
    assert all((router.centroids.grad == 0).all() for router in regime.routers)
    assert any((router.projection.grad != 0).any() for router in regime.routers)


def test_the_bias_raises_groups_with_too_few_tokens(work: Any) -> None:
    regime = new(work(one=block("bias")), "one")
    regime.configure_model()
    logits = torch.zeros(1, 1, 1, 10, 4)
    logits[..., 0] = torch.arange(10.0)
    for router in regime.routers:
        regime.seen.logits[router] = logits
    registry.find("mitigation", "bias").move(regime, 1)
    for router in regime.routers:
        first, *others = router.potentials[0, 0].tolist()
        assert first < 0 < min(others)


def test_potentials_from_before_even_groups_out(work: Any, tmp_path: Path) -> None:
    how = {"steps": 12, "learning_rate": 1e-6, "weights": False}
    chosen = work(causal=block("causal", **how), none=block("softmax", **how))
    found = {name: evenness(fitted(chosen, name, tmp_path / name)) for name in ("causal", "none")}
    assert found["causal"] < found["none"]


def test_clustering_gives_every_group_tokens(work: Any) -> None:
    regime = new(work(one=block("recluster")), "one")
    regime.configure_model()
    with regime.method.training(regime.model, 0, regime.settings):
        regime.model(input_ids=torch.arange(40)[None] % 20, use_cache=False)
    for router in regime.routers:
        with torch.no_grad():
            router.centroids[0, 0, 1:] = router.centroids[0, 0, :1] + 1e3
    registry.find("mitigation", "recluster").cluster(regime, 6)
    for router in regime.routers:
        points, now = regime.seen.projected(router), router.centroids[0, 0]
        nearest = torch.cdist(points, now.detach()).argmin(-1)
        assert len(nearest.unique()) == 4
