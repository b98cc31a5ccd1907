"""The compiled gate against the definition in float64: outputs, gradients, what is not
finite."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from focus.attention.train import blocks, kernel
from focus.attention.train.blocks import Inputs, Rule
from tests.attention.cases import needs_kernel, relative_error
from tests.attention.train.definition import (
    NAMES,
    Case,
    by_definition,
    called,
    check,
    draw,
    with_gradients,
)
from tests.threads import threads

pytestmark = needs_kernel


@pytest.fixture
def no_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("the kernel was not taken")

    monkeypatch.setattr(blocks, "forward", refuse)
    monkeypatch.setattr(blocks, "backward", refuse)


@pytest.mark.usefixtures("no_blocks")
@pytest.mark.parametrize("case", [
    Case(),
    Case(tokens=1), Case(tokens=47), Case(tokens=48), Case(tokens=192), Case(tokens=193),
    Case(window=1, sinks=0), Case(window=1000), Case(sinks=50), Case(sinks=1000),
    Case(groups=1), Case(groups=18, hard=True), Case(groups=40),
    Case(dim=16), Case(dim=80), Case(dim=128),
    Case(heads=(6, 2, 2, 2)), Case(heads=(4, 4, 4, 4)), Case(heads=(6, 3, 1, 1)),
    Case(heads=(6, 3, 6, 1)), Case(sharpness=30.0),
    Case(window=47, sinks=0), Case(window=332, sinks=0), Case(window=1, sinks=191),
    Case(window=1, sinks=192), Case(tokens=600, window=200),
    Case(padding=((0, 333), (100, 333))), Case(padding=((0, 1), (0, 200))),
    Case(padding=((50, 60), (141, 334)), tokens=334, sinks=20), Case(padding=((0, 333), (9, 9))),
    Case(rest={"limit": 333}),
])  # fmt: skip
def test_outputs_and_gradients_are_the_definitions(case: Case) -> None:
    check(case, torch.float32, 3e-6)


@pytest.mark.usefixtures("no_blocks")
@pytest.mark.parametrize("case", [Case(), Case(padding=((0, 333), (100, 333)))])
def test_bfloat16_loses_no_more_than_its_rounding(case: Case) -> None:
    check(case, torch.bfloat16, 4e-3)


@pytest.mark.parametrize("case", [
    Case(dim=5), Case(gate="eq2"), Case(rest={"limit": 332}), Case(rest={"softcap": 30.0}),
    Case(rest={"dropout": 0.5}),
])  # fmt: skip
def test_what_the_kernel_cannot_compute_is_left_to_blocks(case: Case) -> None:
    tensors = [x.float() for x in draw(case)]
    rule = Rule(case.gate, case.window, case.sinks, 1.0, **case.rest)
    assert kernel.spans_of(Inputs(*tensors), rule) is None


def test_padding_between_real_tokens_is_left_to_blocks() -> None:
    tensors, real = [x.float() for x in draw(Case())], torch.ones(2, 333, dtype=torch.bool)
    real[1, 30] = False
    rule = Rule("log", 16, 4, 1.0)
    assert kernel.spans_of(Inputs(*tensors, real=real), rule) is None
    real[1, 30], real[1, :3] = True, False
    spans = kernel.spans_of(Inputs(*tensors, real=real), rule)
    assert spans is not None
    assert spans.tolist() == [[0, 333], [3, 333]]
    assert kernel.spans_of(Inputs(*(x.double() for x in tensors)), rule) is None


def test_threads_change_nothing() -> None:
    case = Case()
    tensors = [x.float().requires_grad_() for x in draw(case)]
    with threads(1):
        alone = with_gradients(called(case, tensors), tensors)
    with threads(3):
        three = with_gradients(called(case, tensors), tensors)
    for one, other in zip(three, alone, strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("size", [60.0, 300.0])
def test_great_logits_are_no_trouble(size: float) -> None:
    case = Case()
    exact = draw(case)
    exact[0] *= size
    tensors = [x.float().requires_grad_() for x in exact]
    found = with_gradients(called(case, tensors), tensors)
    # float32's logits are no better
    assert relative_error(found[0], by_definition(exact, **case.options())) <= 1e-3
    assert all(bool(x.isfinite().all()) for x in found)


@pytest.mark.parametrize("broken", range(5))
@pytest.mark.parametrize("what", [float("nan"), float("inf")])
def test_what_is_not_finite_shows_from_its_token_on_and_in_every_gradient(
    broken: int, what: float
) -> None:
    case = Case()
    tensors = [x.float() for x in draw(case)]
    good = called(case, tensors)
    tensors[broken][0, 0, 207, 0] = what
    for x in tensors:
        x.requires_grad_()
    out, *grads = with_gradients(called(case, tensors), tensors)
    assert torch.equal(out[0, 0, :207], good[0, 0, :207])
    assert bool(out[0, 0, 207:].isnan().all())
    assert torch.equal(out[1], good[1])
    for name, grad in zip(NAMES, grads, strict=True):
        assert bool(grad[0, 0].isnan().all()), name
        assert bool(grad[1].isfinite().all()), name


@pytest.mark.usefixtures("no_blocks")
def test_a_row_that_would_lose_every_weight_keeps_them() -> None:
    """All that is near lies 200 below a distant key of no affinity."""

    def tensors(dtype: torch.dtype) -> list[Tensor]:
        query, key = torch.ones(1, 1, 60, 16), torch.zeros(1, 1, 60, 16)
        key[:, :, 0], key[:, :, 1:] = 20.0, torch.linspace(-0.1, 0.1, 59)[:, None]
        of_queries, of_keys = torch.zeros(1, 1, 60, 2), torch.zeros(1, 1, 60, 2)
        of_queries[..., 0], of_keys[..., 1] = 1.0, 1.0
        of_keys[:, :, 30:, 0] = 0.3
        value = torch.arange(60.0).view(1, 1, 60, 1).expand(1, 1, 60, 16)
        made = (query, key, value, of_queries, of_keys)
        return [x.to(dtype).contiguous().requires_grad_() for x in made]

    case = Case(window=2, sinks=0, rest={"scale": 1.0})
    low, exact = tensors(torch.float32), tensors(torch.float64)
    found = with_gradients(called(case, low), low)
    wanted = with_gradients(by_definition(exact, **case.options()), exact)
    assert relative_error(found[0], wanted[0]) <= 1e-5
    assert all(bool(x.isfinite().all()) for x in found)
    for one, other in zip(found[1:4], wanted[1:4], strict=True):
        assert float((one - other).abs().max()) <= 1e-3 * max(1.0, float(other.abs().max()))


def test_logits_beyond_float32_give_nan_not_numbers() -> None:
    tensors = [x.float() for x in draw(Case())]
    tensors[0] *= 1e30
    tensors[1] *= 1e30
    assert bool(called(Case(), tensors).isnan().any())


def test_models_layouts_and_some_gradients() -> None:
    """Heads beside each other, and only the assignments' gradients wanted."""
    case = Case()
    tensors = [x.float() for x in draw(case)]
    turned = [x.transpose(1, 2).contiguous().transpose(1, 2) for x in tensors]
    turned[3].requires_grad_()
    found = called(case, turned)
    assert torch.equal(found, called(case, tensors))
    found.sum().backward()
    assert turned[3].grad is not None
    assert turned[4].grad is None
