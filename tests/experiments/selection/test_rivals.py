"""What each rival's choice and output come to, beside the definition in its paper."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import PreTrainedModel

from experiments import registry
from experiments.methods.base import Method, built
from experiments.methods.csa import STEPS, gains
from experiments.methods.performer import by_features, orthogonal
from experiments.methods.routing_transformer import lloyd, normed
from experiments.methods.sparq_groups import shares
from experiments.regimes.tensors import cast
from experiments.selection.layer import Layer
from experiments.settings import Distil
from focus.config import FocusConfig
from focus.routing import Router
from tests.experiments.methods.reference import words
from tests.experiments.selection.ready import NEAR, ready
from tests.experiments.selection.test_layer import layer
from tests.models import tiny


@torch.no_grad()
def logits_of(model: PreTrainedModel, method: Method, budget: float | None,
              ids: Tensor) -> Tensor:  # fmt: skip
    with method.applied(model, budget):
        return model(ids, use_cache=False).logits


def dense(own: Layer) -> Tensor:
    return own.logits().softmax(-1) @ own.value.repeat_interleave(2, 1)


BY_TOKEN = [("oracle_heads", {}), ("csa", {}), ("sparq", {}), ("indexer", {})]
BY_BLOCK = [(name, {"block": 4}) for name in ("quest", "moba", "seer")]


@pytest.mark.parametrize(("name", "fields"), BY_TOKEN)
def test_a_choice_of_everything_is_full_attention(name: str, fields: dict[str, Any]) -> None:
    model, method = ready(name, **fields)
    ids = words(1, 90)
    with torch.no_grad():
        wanted = tiny("tiny-llama").eval()(ids, use_cache=False).logits
    torch.testing.assert_close(logits_of(model, method, 1.0, ids), wanted, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize(("name", "fields"), [*BY_TOKEN, *BY_BLOCK, ("routing_transformer", {})])
def test_token_by_token_it_chooses_as_all_at_once(name: str, fields: dict[str, Any]) -> None:
    model, method = ready(name, **fields)
    ids = words(1, 80)
    wanted = logits_of(model, method, 0.25, ids)
    with method.applied(model, 0.25), torch.no_grad():
        cache = model(ids[:, :60]).past_key_values
        steps = [model(ids[:, n : n + 1], past_key_values=cache).logits for n in range(60, 80)]
    torch.testing.assert_close(torch.cat(steps, 1), wanted[:, 60:], atol=1e-4, rtol=1e-4)


def test_a_choice_for_blocks_of_queries_cannot_generate() -> None:
    model, method = ready("xattention", block=4, stride=2)
    with method.applied(model, 0.25), torch.no_grad():
        cache = model(words(1, 30)).past_key_values
        with pytest.raises(ValueError, match=r"xattention: .* cannot generate"):
            model(words(1, 1), past_key_values=cache)


@pytest.mark.parametrize("name", ["magicpig", "routing_transformer", "csa"])
def test_without_training_windows_nothing_is_chosen(name: str) -> None:
    model, method = tiny("tiny-llama"), built(registry.find("method", name), NEAR, seed=1)
    method.install(model)
    with pytest.raises(ValueError, match=r"^calibrate: .*training windows"):
        logits_of(model, method, 0.25, words(1, 90))


@pytest.mark.parametrize("name", ["quest", "moba", "seer"])
def test_blocks_that_reach_out_of_the_window_are_refused(name: str) -> None:
    kind = registry.find("method", name)
    with pytest.raises(ValueError, match=r"^x\.budgets: .* blocks of at most window = 8"):
        kind.check(kind.Settings(window=8, block=16), 0.25, "x.budgets")


def test_quest_bounds_every_logit_of_a_page() -> None:
    _, method = ready("quest", block=4)
    own = layer()
    kept = method.kept(own, 0.3)
    best = own.logits().masked_fill(~own.distant, -torch.inf).amax(-1)
    found = own.logits().masked_fill(~(kept & own.distant), -torch.inf).amax(-1)
    rows = (kept & own.distant).any(-1)
    assert (found[rows] == best[rows]).float().mean() > 0.6  # by chance: less than half


def test_sparq_of_all_components_is_the_oracle_and_gives_the_rest_the_mean() -> None:
    _, method = ready("sparq", components=8)
    _, oracle = ready("oracle_heads")
    own = layer()
    kept = method.kept(own, 0.2)
    assert kept.equal(oracle.kept(own, 0.2))
    weights = own.logits().softmax(-1)
    mass = (weights * kept).sum(-1, keepdim=True)
    value = own.value.repeat_interleave(2, 1)
    mean = value.cumsum(2) / torch.arange(1, 61)[:, None]
    wanted = (weights * kept) @ value + (1 - mass) * mean
    torch.testing.assert_close(method.output(own, kept), wanted, atol=1e-5, rtol=1e-5)


SEARCHED = {"num_groups": 6, "probe": "multi_probe", "routers": "query_head", "ngram": 3}


def test_sparq_in_every_group_is_sparq() -> None:
    model, method = ready("sparq_groups", components=4, top_k=6, **SEARCHED)
    other, alone = ready("sparq", components=4, reallocate=False)
    ids = words(1, 90)
    wanted = logits_of(other, alone, 0.2, ids)
    torch.testing.assert_close(logits_of(model, method, 0.2, ids), wanted, atol=1e-5, rtol=1e-5)


def test_sparq_in_groups_keeps_what_the_hard_mask_does_or_less() -> None:
    """All of it, under a budget that leaves nothing out; else the heaviest, query by query."""
    model, method = ready("sparq_groups", components=8, top_k=2, **SEARCHED)
    hard = built(registry.find("method", "focus"), {**NEAR, "top_k": 2, **SEARCHED}, seed=1)
    ids = words(1, 90)
    with hard.applied(model, None) as counting, torch.no_grad():
        wanted, most = model(ids, use_cache=False).logits, counting()
    found = logits_of(model, method, 1.0, ids)
    torch.testing.assert_close(found, wanted, atol=1e-5, rtol=1e-5)
    with method.applied(model, 0.2) as counting, torch.no_grad():
        model(ids, use_cache=False)
        fewer = counting()
    assert 0 < fewer.distant_kept < 0.2 * fewer.distant < most.distant_kept
    with method.applied(model, 0.2), torch.no_grad():
        cache = model(ids).past_key_values
        with pytest.raises(ValueError, match=r"^sparq_groups: .*cannot generate"):
            model(ids[:, :1], past_key_values=cache)


def test_heads_that_search_more_keep_more() -> None:
    config = FocusConfig.recipe(num_groups=4, top_k=2, heavy_hitters=0.1, allocated=True)
    routers = {n: Router(config, 8, 1, 2) for n in (0, 3)}
    routers[0].take(taken_at=torch.tensor([[1.0, 2, 3, 4], [1, 2, 2, 2]]))
    routers[3].take(taken_at=torch.tensor([[3.0, 3, 4, 4], [1, 1, 2, 4]]))
    found = shares(routers, config, 0.2)
    searched = torch.tensor([2, 4, 0, 3]).double() / 4 + 0.1
    torch.testing.assert_close(torch.cat(list(found.values())), 0.2 * searched / searched.mean())
    assert float(torch.cat(list(shares(routers, config, 0.9).values())).max()) == 1.0


@pytest.mark.parametrize("field", ["dense_every", "dense_last", "shared_layers"])
def test_sparq_in_groups_knows_no_layers_apart(field: str) -> None:
    kind = registry.find("method", "sparq_groups")
    with pytest.raises(ValueError, match=rf"^x: method sparq_groups knows no {field}"):
        kind.check(kind.Settings(**SEARCHED, **{field: 2}), 0.2, "x")


def test_magicpig_estimates_full_attention() -> None:
    """The mean over many draws is nearer to it than attention over the window alone."""
    own = layer(60)
    found, plain = [], []
    for seed in range(40):
        fields = {**NEAR, "bits": 2, "most_tables": 8}
        method = built(registry.find("method", "magicpig"), fields, seed)
        method._centres, method._shares = {0: torch.zeros(1, 4, 1, 8)}, [0.0] * 8
        kept = method.kept(own, 0.3)
        found.append(method.output(own, kept))
        plain.append((own.logits().masked_fill(~kept, -torch.inf)).softmax(-1)
                     @ own.value.repeat_interleave(2, 1))  # fmt: skip
    wanted = dense(own)[:, :, 20:]
    off, plain_off = ((torch.stack(x).mean(0)[:, :, 20:] - wanted).abs().mean()
                      for x in (found, plain))  # fmt: skip
    near = own.logits().masked_fill(~own.near, -torch.inf).softmax(-1)
    window_off = ((near @ own.value.repeat_interleave(2, 1))[:, :, 20:] - wanted).abs().mean()
    assert off < plain_off < window_off


def test_performer_comes_near_softmax_with_many_features() -> None:
    own = replace(layer(40), scale=0.2)
    errors = []
    for features in (16, 4096):
        drawn = orthogonal(features, 8, torch.Generator().manual_seed(0))
        assert drawn.shape == (features, 8)
        found = by_features(own.query, own.key, own.value, own.scale, drawn)
        errors.append(float((found - dense(own)).abs().mean()))
    assert errors[1] < 0.4 * errors[0]
    first = drawn[:8] / drawn[:8].norm(dim=-1, keepdim=True)
    torch.testing.assert_close(first @ first.T, torch.eye(8), atol=1e-5, rtol=0)


def test_calibrated_shares_go_where_weight_is_and_add_up() -> None:
    _, method = ready("csa")
    shares = torch.stack([method._share(0.25, index) for index in range(len(method._gains))])
    assert float(shares.mean()) == pytest.approx(0.25, abs=1 / STEPS)
    assert shares.std() > 0
    spread = layer(200)
    peaked = replace(spread, query=spread.query * 5)
    assert gains(peaked)[:, 0].mean() > gains(spread)[:, 0].mean()
    assert gains(spread).sum(-1).max() <= 1.0 + 1e-5
    assert gains(spread).unflatten(-1, (8, 8)).sum(-1).diff(dim=-1).max() < 0


def test_clusters_gather_what_is_near() -> None:
    centres = torch.eye(8)[:3]
    points = (centres.repeat(20, 1) + 0.05 * torch.randn(60, 8)).unsqueeze(0)
    means = lloyd(normed(points), normed(points)[:, :3], 5)
    nearest = (normed(points) @ means.transpose(1, 2)).argmax(-1)[0]
    assert all(len(set(nearest[n::3].tolist())) == 1 for n in range(3))
    assert len(set(nearest[:3].tolist())) == 3


@pytest.mark.parametrize(("name", "fields"), [("seer", {"block": 4, "dim": 8}), ("indexer", {})])
def test_networks_learn_what_full_attention_weighs(name: str, fields: dict[str, Any]) -> None:
    model, method = ready(name, **fields)
    model.requires_grad_(False)
    model.selectors.requires_grad_()
    optimizer = torch.optim.Adam(model.selectors.parameters(), lr=0.02)
    losses = []
    for step in range(30):
        torch.manual_seed(step)
        with method.distilling(model, Distil(steps=1, rows=64).rows) as found:
            model(words(1, 120, seed=step % 3), use_cache=False)
        loss = torch.stack(found).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(float(loss.detach()))
    assert len(found) == model.config.num_hidden_layers
    assert sum(losses[-5:]) < 0.8 * sum(losses[:5])
    assert all(p.grad is None for n, p in model.named_parameters() if "selectors" not in n)


def test_distilling_leaves_the_model_as_it_reads_in_full() -> None:
    model, method = ready("seer", block=4, dim=8)
    ids = words(1, 90)
    with torch.no_grad():
        wanted = tiny("tiny-llama").eval()(ids, use_cache=False).logits
        with method.distilling(model, 16):
            found = model(ids, use_cache=False).logits
    torch.testing.assert_close(found, wanted, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("name", ["sparq", "magicpig", "seer", "indexer", "performer"])
def test_a_bfloat16_model_is_read_as_one_in_float32(name: str) -> None:
    found = []
    for dtype in (torch.float32, torch.bfloat16):
        model = tiny("tiny-llama").to(dtype)
        fields = {**NEAR, "block": 4} if name == "seer" else NEAR
        method = built(registry.find("method", name), fields, 1)
        method.install(model)
        cast(model, dtype)
        method.calibrate(model, [words(1, 200)])
        budget = None if name == "performer" else 0.5
        found.append(logits_of(model.eval(), method, budget, words(1, 90)).float())
    assert (found[0] - found[1]).abs().mean() < 0.1 * found[0].std()
