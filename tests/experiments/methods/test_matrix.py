"""Every method by the same questions: what it computes, keeps, counts, and leaves behind."""

from __future__ import annotations

from contextlib import suppress
from functools import cache
from typing import Any

import pytest
import torch
from transformers import PreTrainedModel
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

import focus
from experiments import registry
from experiments.methods.base import Method, built
from experiments.methods.random import balance
from experiments.selection.choosing import Choosing
from experiments.settings import Mask
from tests.experiments.methods.reference import (
    heaviest_by_definition,
    masked,
    masks_of,
    near_pairs,
    words,
)
from tests.models import logits, tiny

TOKENS, WINDOW, SINKS = 400, 32, 4
NEAR = {"window": WINDOW, "sinks": SINKS}
ROUTED = {**NEAR, "num_groups": 8, "top_k": 2, "probe": "multi_probe", "routers": "query_head",
          "ngram": 3}  # fmt: skip
CASES: dict[str, tuple[str, dict[str, Any], Any]] = {
    "full": ("full", NEAR, None),
    "focus-own": ("focus", ROUTED, None),
    "focus-one": ("focus", ROUTED, 0.125),
    "focus-two": ("focus", {**ROUTED, "ngram": 0}, 0.25),
    "focus-two-groups": ("focus", {**NEAR, "num_groups": 2}, 0.5),
    "focus-mask": ("focus", {**ROUTED, "routers": "layer"}, Mask(top_k=2, ngram=2)),
    "heavy_window": ("heavy_window", {**ROUTED, "heavy_hitters": 0.02}, 0.125),
    "window-own": ("window", NEAR, None),
    "window": ("window", NEAR, 0.125),
    "window-plain": ("window", {**NEAR, "ngram": 0}, 0.3),
    "window-all": ("window", NEAR, 1.0),
    "ngram": ("ngram", NEAR, None),
    "random-one": ("random", NEAR, 0.0625),
    "random": ("random", NEAR, 0.125),
    "random-plain": ("random", {**NEAR, "ngram": 0, "routers": "layer"}, 0.25),
    "position": ("position", NEAR, 0.0625),
    "position-plain": ("position", {**NEAR, "ngram": 0}, 0.3),
    "token": ("token", NEAR, 0.125),
    "token-plain": ("token", {**NEAR, "ngram": 0}, 0.25),
    "oracle_heads": ("oracle_heads", NEAR, 0.125),
    "csa": ("csa", NEAR, 0.125),
    "quest": ("quest", {**NEAR, "block": 8}, 0.125),
    "moba": ("moba", {**NEAR, "block": 16}, 0.125),
    "xattention": ("xattention", {**NEAR, "block": 16, "stride": 4}, 0.125),
    "sparq": ("sparq", {**NEAR, "components": 4}, 0.125),
    "sparq_groups": ("sparq_groups", {**ROUTED, "top_k": 4, "components": 4}, 0.125),
    "magicpig": ("magicpig", {**NEAR, "bits": 3}, 0.125),
    "sparq_keys": ("sparq_keys", {**NEAR, "components": 4, "keys": 48}, None),
    "magicpig_keys": ("magicpig_keys", {**NEAR, "bits": 3, "keys": 48}, None),
    "routing_transformer": ("routing_transformer", NEAR, 0.125),
    "performer": ("performer", NEAR, None),
    "seer": ("seer", {**NEAR, "block": 16, "dim": 8}, 0.125),
    "indexer": ("indexer", {**NEAR, "heads": 2, "dim": 8}, 0.125),
}
KINDS = {name: registry.find("method", case[0]) for name, case in CASES.items()}
WHOLE = ("full", "performer")
CHOOSING = [
    name for name, kind in KINDS.items() if issubclass(kind, Choosing) and name not in WHOLE
]
MASKED = [name for name in CASES if name not in (*CHOOSING, *WHOLE)]
SHARED = [name for name, case in CASES.items() if isinstance(case[2], float)]
# Of those that no calibration on other texts makes inexact.
EXACT = {"oracle_heads", "quest", "moba", "xattention", "sparq", "seer", "indexer"}


@cache
def ready(name: str) -> tuple[PreTrainedModel, Method, Any]:
    """A tiny model with a case's method installed and calibrated, and its budget; one for all
    tests, since a method leaves the model as it was."""
    kind, fields, budget = CASES[name]
    model, method = tiny("tiny-llama"), built(registry.find("method", kind), fields, seed=1)
    method.install(model)
    windows = list(words(3, TOKENS, seed=8).split(1))
    method.calibrate(model, windows)
    if kind == "focus":
        balance(model, windows)  # as training would
    if kind == "heavy_window":
        focus.find_heavy_hitters(model, [words(2, 600, seed=8)])  # as its start has
    return model.eval(), method, budget


def test_every_method_is_tested() -> None:
    assert {case[0] for case in CASES.values()} == set(registry.names("method"))


@pytest.mark.parametrize("name", MASKED)
def test_logits_and_counts_are_those_of_the_mask(name: str) -> None:
    model, method, budget = ready(name)
    ids = words(2, TOKENS)
    with method.applied(model, budget) as counting:
        found = logits(model, ids)
        pairs = counting()
    masks = masks_of(model, method, budget, ids)
    with masked(lambda layer, query, key: masks[layer]) as reference:
        torch.testing.assert_close(found, logits(reference, ids), atol=1e-4, rtol=1e-4)
    near = near_pairs(TOKENS, WINDOW, SINKS)
    causal = torch.ones(TOKENS, TOKENS, dtype=torch.bool).tril()
    routings = sum(len(each) * each.shape[1] for each in masks.values())
    assert pairs.causal == routings * int(causal.sum())
    assert pairs.near == routings * int(near.sum())
    assert pairs.distant == pairs.causal - pairs.near
    assert pairs.distant_kept == sum(int((each & ~near).sum()) for each in masks.values())
    assert pairs.density == pytest.approx(sum(int(m.sum()) for m in masks.values()) / pairs.causal)


def test_full_attention_is_the_model_as_it_is() -> None:
    model, method, _ = ready("full")
    ids = words(2, TOKENS)
    with method.applied(model, None) as counting:
        found = logits(model, ids)
        pairs = counting()
    assert torch.equal(found, logits(tiny("tiny-llama"), ids))
    assert (pairs.density, pairs.distant_density) == (1.0, 1.0)
    assert pairs.near == 2 * int(near_pairs(TOKENS, WINDOW, SINKS).sum())


def test_the_oracle_keeps_the_heaviest_keys() -> None:
    model, method, budget = ready("oracle_heads")
    ids, kept = words(2, TOKENS), []
    with method.applied(model, budget) as counting:
        found = logits(model, ids)
        pairs = counting()

    def mask_of(layer: int, query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
        kept.append(heaviest_by_definition(query, key, budget, WINDOW, SINKS))
        return kept[-1]

    with masked(mask_of) as reference:
        wanted = logits(reference, ids)
    off = (found - wanted).abs()  # keys of nearly one weight change places by rounding
    assert off.max() < 0.05
    assert (off > 1e-4).float().mean() < 0.02
    near = near_pairs(TOKENS, WINDOW, SINKS)
    assert pairs.distant_kept == sum(int((each & ~near).sum()) for each in kept)
    assert pairs.distant == sum(len(m) * m.shape[1] * int((~near).tril().sum()) for m in kept)


CAUSAL = [name for name, kind in KINDS.items() if getattr(kind, "causal", True)]


@pytest.mark.parametrize("name", CAUSAL)
def test_a_later_token_changes_nothing_earlier(name: str) -> None:
    model, method, budget = ready(name)
    ids = words(1, TOKENS)
    other = ids.clone()
    other[:, 300:] = words(1, 100, seed=5)
    with method.applied(model, budget):
        one, two = logits(model, ids), logits(model, other)
    assert not torch.allclose(one[:, 300:], two[:, 300:], atol=1e-2)
    torch.testing.assert_close(one[:, :300], two[:, :300], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("name", SHARED)
def test_the_budget_is_kept(name: str) -> None:
    """Controls keep no fewer pairs than it, and not many more; routers, where groups are even, no
    more but for what groups are uneven by. Further keys come on top."""
    kind, fields, budget = CASES[name]
    model, method, _ = ready(name)
    ids = words(3, TOKENS, seed=8) if kind in ("random", "token") else words(3, TOKENS)
    with method.applied(model, budget) as counting:
        logits(model, ids)
        share = counting().distant_density
    further = 0.03 if fields.get("ngram", 3) else 0.0
    if kind == "focus":
        assert 0.8 * budget < share < 1.15 * budget + further
    elif kind in EXACT:
        cut = fields.get("block", 1) - 1  # keys of a block that reaches into the window
        assert share <= budget
        assert share > budget - 0.002 - 0.1 * bool(cut)
    elif name in CHOOSING:
        assert 0.5 * budget < share < 1.5 * budget
    else:
        assert budget <= share < 1.3 * budget + further
        assert share <= 1


@pytest.mark.parametrize("name", CASES)
def test_the_model_is_as_it_was_and_the_budget_is_told(name: str) -> None:
    model, method, budget = ready(name)
    ids = words(1, 100)
    before, plain = snapshot(model), logits(model, ids)
    with method.applied(model, budget):
        logits(model, words(1, TOKENS))
    told = method.describe(budget)
    assert set(told) == {"K", "top_k", "probe", "ngram", "window", "sinks", "balance"}
    assert None not in told.values()
    assert snapshot(model) == before
    assert torch.equal(logits(model, ids), plain)
    with suppress(KeyError), method.applied(model, budget):
        logits(model, ids)
        raise KeyError("within")
    with pytest.raises((IndexError, ValueError)), method.applied(model, budget):
        logits(model, torch.zeros(1, 0, dtype=torch.int64))
    assert snapshot(model) == before
    assert torch.equal(logits(model, ids), plain)


def snapshot(model: PreTrainedModel) -> dict[str, Any]:
    """Whatever a method could leave behind on a model, and in transformers."""
    state = model.__dict__.get("focus_state")
    hooks = {name: [*map(id, (*m._forward_pre_hooks.values(), *m._forward_hooks.values()))]
             for name, m in model.named_modules()}  # fmt: skip
    found = {
        "hooks": hooks,
        "modules": [(name, id(module), module.training) for name, module in model.named_modules()],
        "parameters": [(n, p.requires_grad, p._version) for n, p in model.named_parameters()],
        "attention": model.config._attn_implementation,
        "functions": sorted(ALL_ATTENTION_FUNCTIONS),
    }
    if state is None:
        return found
    return {**found, "config": state.config, "mode": state.mode, "active": state.active,
            "adapters": list(state.adapters), "implementation": state.implementation}  # fmt: skip


@pytest.mark.parametrize("name", SHARED)
def test_one_budget_after_the_other(name: str) -> None:
    model, method, budget = ready(name)
    ids, found = words(1, TOKENS), []
    for each in (budget, 0.5, budget):
        with method.applied(model, each) as counting:
            found.append((logits(model, ids), counting()))
    assert torch.equal(found[0][0], found[2][0])
    assert found[0][1] == found[2][1]
    if budget not in (0.5, 1.0):
        assert found[1][1].distant_density > found[0][1].distant_density


def test_an_unknown_method_is_refused_with_those_that_there_are() -> None:
    with pytest.raises(ValueError, match=r"^method\.name: 'moon' is no method; there are csa, fo"):
        registry.find("method", "moon")
    with pytest.raises(ValueError, match=r"^method\.name: 'fixed' is no method"):
        registry.find("method", "fixed")
    with pytest.raises(ValueError, match=r"^method\.windo: unknown field"):
        built(registry.find("method", "window"), {"windo": 3}, seed=0)
