"""Methods on models that have something on them already, and texts that go on."""

from __future__ import annotations

import pytest
import torch

import focus
from experiments import registry
from experiments.methods.base import built
from tests.experiments.methods.reference import words
from tests.models import logits, tiny

ROUTED = {"num_groups": 4, "window": 16, "ngram": 0}


def test_routers_of_a_start_stay_under_the_methods_own_config() -> None:
    model = tiny("tiny-llama")
    focus.attach(model, focus.FocusConfig(**ROUTED), seed=7)
    before = {n: p.clone() for n, p in model.named_parameters() if "focus_router" in n}
    method = built(registry.find("method", "focus"), {**ROUTED, "window": 32, "top_k": 2}, seed=0)
    method.install(model)
    assert all(torch.equal(p, before[n]) for n, p in model.named_parameters() if n in before)
    assert model.focus_state.config == method.config
    assert model.focus_state.adapters["default"].config == method.config
    for field, value in (("num_groups", 8), ("routers", "key_head"), ("routing_dim", 8)):
        other = built(registry.find("method", "focus"), {**ROUTED, field: value}, seed=0)
        with pytest.raises(ValueError, match=rf"^method\.{field}: {value} is not"):
            other.install(model)


@pytest.mark.parametrize("kind", ["window", "position", "random", "oracle_heads", "token", "ngram"])
def test_routers_that_were_there_do_not_matter_to_another_method(kind: str) -> None:
    ids, found = words(1, 200), []
    budget = None if kind == "ngram" else 0.25
    for routed in (False, True):
        model = tiny("tiny-llama")
        if routed:
            focus.attach(model, focus.FocusConfig(**ROUTED), seed=7)
        method = built(registry.find("method", kind), {"window": 16}, seed=0)
        method.install(model)
        method.calibrate(model, [words(1, 200, seed=9)])
        with method.applied(model, budget):
            found.append(logits(model, ids))
    assert torch.equal(found[0], found[1])


@pytest.mark.parametrize("kind", ["window", "position", "random", "oracle_heads", "token", "ngram"])
def test_outside_of_its_context_the_model_attends_in_full(kind: str) -> None:
    model, ids = tiny("tiny-llama"), words(1, 200)
    wanted = logits(model, ids)
    built(registry.find("method", kind), {"window": 16}, seed=0).install(model)
    torch.testing.assert_close(logits(model, ids), wanted, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(("kind", "budget"), [("window", None), ("window", 0.25), ("ngram", None),
                                              ("position", 0.25), ("token", 0.25)])  # fmt: skip
def test_a_text_that_goes_on_from_a_cache_keeps_what_it_began_with(
    kind: str, budget: float | None
) -> None:
    model, ids = tiny("tiny-llama"), words(1, 150)
    method = built(registry.find("method", kind), {"window": 16}, seed=0)
    method.install(model)
    method.calibrate(model, [words(1, 200, seed=9)])
    with method.applied(model, budget) as counting, torch.no_grad():
        whole = model(ids, use_cache=False).logits
        every, told = counting(), method.describe(budget)
        first = model(ids[:, :149])
        begun, said = counting(), method.describe(budget)
        last = model(ids[:, 149:], past_key_values=first.past_key_values).logits
        then = counting()
    if said == told:  # the length is not such that one token more asks for another window
        torch.testing.assert_close(last[:, -1], whole[:, -1], atol=1e-5, rtol=1e-4)
        assert tuple(a + b for a, b in zip(begun, then, strict=True)) == tuple(every)
    assert kind == "window" or said == told
    assert then.causal == begun.causal // (149 * 150 // 2) * 150
    assert method.describe(budget) == said


def test_rules_have_no_training_gate() -> None:
    model = tiny("tiny-llama")
    method = built(registry.find("method", "position"), {"window": 16}, seed=0)
    method.install(model)
    with pytest.raises(ValueError, match="no training gate"), focus.mode(model, "soft"):
        logits(model, words(1, 60))


def test_groups_by_token_need_token_ids() -> None:
    model = tiny("tiny-llama")
    method = built(registry.find("method", "token"), {"window": 16, "ngram": 0}, seed=0)
    method.install(model)
    method.calibrate(model, [words(1, 200)])
    embedded = model.get_input_embeddings()(words(1, 100))
    with method.applied(model, 0.25), pytest.raises(ValueError, match=r"^input_ids: "):
        model(inputs_embeds=embedded, use_cache=False)
