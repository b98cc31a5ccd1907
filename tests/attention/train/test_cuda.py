"""Triton's gates by its interpreter, on CPU, against the definition: outputs and gradients."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest
import torch

from focus.attention.train import blocks, cuda, kernel
from focus.attention.train.operator import masked_attention
from tests.attention.train.definition import Case, by_definition, check, draw, with_gradients

pytest.importorskip("triton", reason="Triton is not installed")
pytestmark = pytest.mark.filterwarnings("ignore:divide by zero:RuntimeWarning")  # log of affinity 0
few = partial(Case, heads=(2, 1, 2, 1))  # the interpreter takes a tenth of a second for a block
CASES = [
    few(50), few(1), few(35, window=1, sinks=0), few(35, window=1000), few(35, groups=1),
    few(50, groups=18, hard=True), Case(35, heads=(4, 2, 2, 2)), Case(35, heads=(4, 2, 1, 1)),
    Case(35, heads=(4, 2, 4, 1), dim=5), few(40, padding=((0, 40), (17, 40))),
    few(40, padding=((0, 30), (0, 1)), sinks=20), few(50, rest={"limit": 20}),
    few(40, rest={"limit": 8}, window=64),
    few(50, rest={"limit": 30, "scale": 0.3}, padding=((0, 50), (20, 50))),
]  # fmt: skip


@pytest.fixture(autouse=True)
def interpreted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks that short sequences need several of, and no other path."""
    monkeypatch.setattr(cuda, "sizes", lambda *_: (16, 32, {}))
    monkeypatch.setattr(kernel, "spans_of", lambda x, rule: None)
    monkeypatch.setattr(cuda, "computes", lambda x, rule: True)
    for name in ("forward", "backward"):
        monkeypatch.setattr(blocks, name, None)


@pytest.mark.parametrize("gate", ["log", "eq2"])
@pytest.mark.parametrize("case", CASES, ids=str)
def test_outputs_and_gradients_are_the_definitions(case: Case, gate: str) -> None:
    check(replace(case, gate=gate), torch.float32, 1e-5)


@pytest.mark.parametrize("gate", ["log", "eq2"])
def test_half_precision_loses_its_rounding_alone(gate: str) -> None:
    check(few(50, gate=gate), torch.float16, 2e-3)


def test_a_pair_of_affinity_zero_still_learns() -> None:
    """Hard groups whose affinities are 0: weights are 0, their slopes are not."""
    check(few(50, groups=4, hard=True, sharpness=60.0), torch.float32, 1e-5)


@pytest.mark.parametrize("limit", [None, 24])
def test_the_hard_mask_beside_a_window_of_the_models_own(limit: int | None) -> None:
    case = few(50, hard=True, padding=((0, 50), (9, 50)), rest={"limit": limit})
    query, key, value, own, groups = draw(case)
    own = torch.zeros_like(own).scatter_(-1, own.argmax(-1, keepdim=True), 1.0)
    exact = [each.requires_grad_() for each in (query, key, value)]
    wanted = with_gradients(by_definition([*exact, own, groups], **case.options()), exact)
    low = [each.detach().float().requires_grad_() for each in exact]
    out = masked_attention(*low, own > 0, groups > 0, window=case.window, sinks=case.sinks,
                           scale=case.dim**-0.5, real=case.real(), limit=limit)  # fmt: skip
    for one, other in zip(with_gradients(out, low), wanted, strict=True):
        assert (one.double() - other).norm() <= 1e-5 * (other.norm() + 1.0)
