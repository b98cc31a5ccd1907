"""Groups that differ by layer (some layers dense, or one routing for several), and how even they
are."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import PreTrainedModel

import focus
from experiments import registry
from experiments.methods.base import Method, built
from experiments.methods.focus import balance_statistics
from experiments.settings import Centroids
from tests.models import tiny, token_ids

REGIME = Centroids(steps=2)
OWN = {"window": 8, "num_groups": 4, "top_k": 2}
KINDS: dict[str, dict[str, Any]] = {
    "paper": {"routers": "paper", "balance": "sinkhorn", "gate": "eq2"},
    "recipe": {"routers": "query_head", "probe": "multi_probe", "ngram": 0},
}


def built_with(kind: str, **own: int) -> tuple[PreTrainedModel, Method]:
    model = tiny("tiny-llama")
    method = built(registry.find("method", "focus"), {**OWN, **KINDS[kind], **own}, seed=0)
    method.install(model)
    return model, method


def logits(model: PreTrainedModel, ids: Tensor) -> Tensor:
    return model(input_ids=ids, use_cache=False).logits


@pytest.mark.parametrize("kind", KINDS)
def test_all_layers_dense_are_full_attention(kind: str) -> None:
    model, method = built_with(kind, dense_every=1)
    ids = token_ids(2, 48)
    with focus.mode(model, "full"):
        wanted = logits(model, ids)
    with method.applied(model, None) as counting:
        torch.testing.assert_close(logits(model, ids), wanted, rtol=1e-4, atol=1e-5)
        assert counting().distant_density == 1.0
    with method.training(model, 0, REGIME):
        torch.testing.assert_close(logits(model, ids), wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_the_last_of_each_run_is_dense(kind: str) -> None:
    model, method = built_with(kind, dense_every=2)
    with method.applied(model, None):
        logits(model, token_ids(2, 48))
        found = list(focus.density(model).values())
    assert found[1::2] == [1.0] * len(found[1::2])
    assert all(each < 1.0 for each in found[::2])


@pytest.mark.parametrize("kind", KINDS)
def test_layers_share_the_first_ones_routing(kind: str) -> None:
    model, method = built_with(kind, shared_layers=2)
    ids = token_ids(2, 48)
    with method.applied(model, None):
        logits(model, ids)
        first, second = list(focus.memberships(model).values())[:2]
    assert torch.equal(first.query, second.query)
    assert torch.equal(first.of_keys, second.of_keys)
    with method.training(model, 0, REGIME):
        logits(model, ids).square().mean().backward()
    lead, follower = list(focus.model.attached(model).routers.values())[:2]
    assert lead.projection.grad is not None
    assert lead.projection.grad.abs().max() > 0
    assert follower.projection.grad is None


@pytest.mark.parametrize("kind", KINDS)
def test_the_last_tokens_look_everywhere(kind: str) -> None:
    model, method = built_with(kind, dense_last=8)
    plain, alike = built_with(kind)
    ids = token_ids(2, 48)
    with method.applied(model, None) as counting:
        logits(model, ids)
        counts, found = counting(), focus.memberships(model)
    with alike.applied(plain, None) as counting:
        logits(plain, ids)
        fewer, first = counting(), focus.memberships(plain)[0]
    assert all(each.query[..., -8:, :].all() for each in found.values())
    assert not any(each.query[..., :-8, :].all() for each in found.values())
    assert counts.distant_kept > fewer.distant_kept
    assert torch.equal(found[0].of_keys, first.of_keys)
    assert torch.equal(found[0].query[..., :-8, :], first.query[..., :-8, :])


def test_nothing_is_left_behind() -> None:
    model, method = built_with("recipe", dense_every=2, shared_layers=2, dense_last=8)
    plain, alike = built_with("recipe")
    ids = token_ids(1, 48)
    with method.applied(model, None):
        changed = logits(model, ids)
    with alike.applied(plain, None):
        wanted = logits(plain, ids)
    with focus.mode(model, "hard", top_k=2):
        assert torch.equal(logits(model, ids), wanted)
    assert not torch.equal(changed, wanted)


def test_settings_are_the_methods_own() -> None:
    with pytest.raises(ValueError, match=r"method\.shared_layers"):
        built_with("paper", shared_layers=0)
    assert not hasattr(built_with("paper", dense_every=2)[1].settings.config, "dense_every")


def test_balance_statistics() -> None:
    even = torch.eye(4, dtype=torch.bool).repeat(8, 1)[None, None]
    assert balance_statistics(even) == {"largest_group": 0.25, "one_plus_cv2": 1.0}
    one = torch.zeros(1, 1, 10, 4, dtype=torch.bool)
    one[..., 0] = True
    assert balance_statistics(one) == {"largest_group": 1.0, "one_plus_cv2": 4.0}
    real = torch.arange(10)[None] < 5
    one[..., 5:, :] = False
    assert balance_statistics(one, real)["largest_group"] == 1.0
