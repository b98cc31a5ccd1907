"""Gates by blocks of query rows against the definition: outputs, gradients, masks and memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from focus.attention.dense import attend, pairs_kept
from focus.attention.train import blocks, kernel, operator
from focus.attention.train.blocks import ROWS
from focus.attention.train.operator import masked_attention
from focus.groups import top_k_groups
from tests.attention.train.definition import (
    Case,
    by_definition,
    called,
    check,
    draw,
    with_gradients,
)

SHAPES = [
    Case(), Case(tokens=1), Case(tokens=63), Case(tokens=111), Case(tokens=ROWS),
    Case(tokens=ROWS + 1), Case(window=1, sinks=0), Case(window=1000), Case(sinks=1000),
    Case(window=1, sinks=200), Case(groups=1), Case(heads=(6, 2, 2, 2)),
    Case(heads=(4, 4, 4, 4)), Case(heads=(6, 3, 1, 1)), Case(heads=(6, 3, 6, 1)), Case(dim=5),
]  # fmt: skip
MASKED = [
    Case(padding=((0, 333), (100, 333))), Case(padding=((0, 200), (0, 1))),
    Case(padding=((50, 60), (140, 300)), sinks=20),
    Case(rest={"limit": 40}), Case(rest={"limit": 1}), Case(rest={"limit": 8}, window=64),
    Case(rest={"softcap": 2.0}), Case(rest={"limit": 200, "softcap": 5.0, "scale": 1.0}),
    Case(rest={"limit": 150}, padding=((0, 333), (100, 333))),
]  # fmt: skip


@pytest.fixture
def no_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel, "library", lambda: None)


@pytest.mark.parametrize("gate", ["log", "eq2"])
@pytest.mark.parametrize("case", [*SHAPES, *MASKED])
def test_outputs_and_gradients_are_the_definitions(case: Case, gate: str) -> None:
    check(Case(**{**vars(case), "gate": gate}), torch.float64, 1e-12)


@pytest.mark.usefixtures("no_kernel")
@pytest.mark.parametrize("gate", ["log", "eq2"])
@pytest.mark.parametrize(
    ("dtype", "tolerance"),
    [(torch.float32, 2e-6), (torch.bfloat16, 4e-3), (torch.float16, 1e-3)],
)
def test_every_dtype_loses_no_more_than_its_rounding(
    gate: str, dtype: torch.dtype, tolerance: float
) -> None:
    check(Case(gate=gate), dtype, tolerance)


@pytest.mark.parametrize("limit", [None, 60])
@pytest.mark.parametrize("softcap", [None, 3.0])
@pytest.mark.parametrize("padded", [False, True])
def test_masked_attention_is_the_definition(
    limit: int | None, softcap: float | None, padded: bool
) -> None:
    """The hard mask with what a model adds, and keys that were found word for word."""
    generator, tokens = torch.Generator().manual_seed(0), 300
    query, key, value = (
        torch.randn(2, heads, tokens, 16, generator=generator, dtype=torch.float64).requires_grad_()
        for heads in (4, 2, 2)
    )
    groups = [torch.rand(2, heads, tokens, 6, generator=generator) for heads in (4, 2)]
    own, others = (top_k_groups(each, top) for each, top in zip(groups, (2, 1), strict=True))
    position = torch.arange(tokens)
    further = (torch.rand(2, tokens, 3, generator=generator) * (position[:, None] + 1)).long()
    further[:, ::3] = -1
    real = None
    if padded:
        real = torch.ones(2, tokens, dtype=torch.bool)
        real[0, :40] = real[1, 100:110] = False
    found = masked_attention(query, key, value, own, others, window=20, sinks=2, scale=0.3,
                             real=real, limit=limit, softcap=softcap, further=further)  # fmt: skip
    band = position[:, None] - position < (limit or tokens)
    kept = pairs_kept(own, others, 20, 2, real, further) & band
    wanted = attend(query, key, value, 0.3, kept=kept, softcap=softcap)
    slope, tensors = torch.randn(found.shape, generator=generator).double(), (query, key, value)
    torch.testing.assert_close(found, wanted, rtol=1e-9, atol=1e-11)
    for one, other in zip(torch.autograd.grad(found, tensors, slope),
                          torch.autograd.grad(wanted, tensors, slope), strict=True):  # fmt: skip
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("gate", ["log", "eq2", "straight_through"])
def test_padding_equals_runs_of_each_sequence_and_stops_nan(gate: str) -> None:
    case = Case(gate=gate, padding=((20, 333), (0, 300)))
    tensors, real = draw(case), case.real()
    assert real is not None
    tensors = [x.masked_fill(~real[:, None, :, None], torch.nan).requires_grad_() for x in tensors]
    out = called(case, tensors)
    for b, (first, last) in enumerate(((20, 333), (0, 300))):
        part = [x[b : b + 1, :, first:last] for x in tensors]
        alone = called(Case(gate=gate), part)
        assert torch.allclose(out[b : b + 1, :, first:last], alone, atol=1e-12)
    assert not out.masked_fill(real[:, None, :, None], 0).any()
    for gradient in torch.autograd.grad(out.sum(), tensors):
        assert gradient.isfinite().all()
        assert not gradient.masked_fill(real[:, None, :, None], 0).any()


def test_half_precision_does_not_overflow_before_it_is_scaled() -> None:
    case = Case(dim=64)
    tensors = [80 * x.half() if n < 2 else x.float() for n, x in enumerate(draw(case))]
    tensors[2] = tensors[2].half()
    raw = tensors[0] @ tensors[1].repeat_interleave(3, 1).transpose(-1, -2)
    assert bool(raw.isinf().any())
    found = called(case, tensors)
    exact = by_definition([x.double() for x in tensors], **case.options())
    assert float((found - exact).norm() / exact.norm()) < 1e-3


def test_eq2_keeps_a_pair_of_no_affinity_at_half_its_logit() -> None:
    logits, none = torch.tensor([[4.0]]), torch.tensor([[0.0]])
    query, key = torch.full((1, 1, 2, 1), 2.0), torch.tensor([2.0, 0.0]).view(1, 1, 2, 1)
    groups = [torch.eye(2)[n].expand(1, 1, 2, 2) for n in range(2)]
    value = torch.tensor([1.0, 0.0]).view(1, 1, 2, 1)
    case = Case(gate="eq2", window=1, sinks=0)
    out = called(case, [query, key, value, *groups], scale=1.0)
    assert torch.allclose(out[0, 0, 1], torch.sigmoid(logits / 2 + none)[0])


def test_a_pair_of_no_affinity_still_learns() -> None:
    """Its weight is affinity * exp(logit): the slope is there where the weight is not."""
    tensors = [x[:1, :1, :40] for x in draw(Case(heads=(1, 1, 1, 1)))]
    tensors[3:] = [torch.eye(5).double()[n].expand(1, 1, 40, 5).clone() for n in range(2)]
    tensors[3].requires_grad_()
    called(Case(), tensors)[..., -1, :].sum().backward()
    step = 1e-7
    grad, moved = tensors[3].grad, tensors[3].detach().clone()
    assert grad is not None
    moved[0, 0, -1, 1] = step
    with torch.no_grad():
        before, after = (called(Case(), [*tensors[:3], x, tensors[4]])[..., -1, :].sum()
                         for x in (tensors[3], moved))  # fmt: skip
    assert float(grad[0, 0, -1, 1]) == pytest.approx(float((after - before) / step), rel=1e-4)


INSIDE: dict[Any, Callable[..., Any]] = {
    torch.ops.focus.gated_attention.default: operator.forward,
    torch.ops.focus.gated_attention_backward.default: operator.backward,
}


class LargestPerHead(TorchDispatchMode):
    """Elements for a sequence and head of the largest tensor that any operation gives, within the
    project's own operators too."""

    def __init__(self, heads: int) -> None:
        super().__init__()
        self.heads, self.largest = heads, 0.0
        self.seen: set[Any] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen.add(func)
        if func in INSIDE:
            with self:
                return INSIDE[func](*args, **(kwargs or {}))
        out = func(*args, **(kwargs or {}))
        for each in out if isinstance(out, (tuple, list)) else [out]:
            if isinstance(each, Tensor):
                self.largest = max(self.largest, each.untyped_storage().nbytes()
                                   / each.element_size() / self.heads)  # fmt: skip
        return out


RESTS: list[dict[str, Any]] = [{}, {"limit": 300}, {"softcap": 5.0}, {"dropout": 0.1},
                               {"padded": True}]  # fmt: skip


@pytest.mark.parametrize(("gate", "compiled", "rest"), [
    *((gate, False, rest) for gate in ("log", "eq2", "straight_through") for rest in RESTS),
    # The rest is left to blocks, with a kernel there as well.
    ("log", True, {}), ("log", True, {"padded": True}), ("straight_through", True, {}),
])  # fmt: skip
def test_nothing_of_tokens_by_tokens_is_made(
    gate: str, compiled: bool, rest: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    if not compiled:
        monkeypatch.setattr(kernel, "library", lambda: None)
    tokens, rest = 512, dict(rest)
    padding = ((0, tokens), (100, tokens)) if rest.pop("padded", False) else None
    case = Case(gate=gate, tokens=tokens, dim=16, heads=(2, 1, 2, 1), padding=padding, rest=rest)
    tensors = [x.float().requires_grad_() for x in draw(case)]
    with LargestPerHead(4) as mode:
        called(case, tensors).sum().backward()
    assert torch.ops.focus.gated_attention_backward.default in mode.seen
    assert tokens * 16 <= mode.largest < tokens * tokens


def test_the_measure_of_memory_sees_all_pairs() -> None:
    case = Case(tokens=256, heads=(2, 1, 2, 1))
    tensors = [x.requires_grad_() for x in draw(case)]
    with LargestPerHead(4) as mode:
        by_definition(tensors, **case.options()).sum().backward()
    assert mode.largest >= 256 * 256


@pytest.mark.parametrize("gate", ["log", "eq2", "straight_through"])
def test_dropout_is_drawn_from_the_default_generator_and_again_backwards(gate: str) -> None:
    case = Case(gate=gate, tokens=200, heads=(2, 1, 2, 1), rest={"dropout": 0.3})
    tensors = [x.requires_grad_() for x in draw(case)]

    def run() -> Tensor:
        torch.manual_seed(5)
        return called(case, tensors)

    one, other = run(), called(case, tensors)
    assert torch.equal(one, run())
    assert not torch.equal(one, other)
    if gate == "straight_through":
        return  # its gradient is not its output's
    torch.autograd.gradcheck(
        lambda value, groups: _dropped(case, [*tensors[:2], value, groups, tensors[4]]),
        (tensors[2], tensors[3]), fast_mode=True,
    )  # fmt: skip


def _dropped(case: Case, tensors: list[Tensor]) -> Tensor:
    torch.manual_seed(5)
    return called(case, tensors)


def test_dropout_keeps_the_mean() -> None:
    case = Case(tokens=64, heads=(2, 1, 2, 1))
    tensors = draw(case)
    torch.manual_seed(0)
    mean = torch.stack([called(case, tensors, dropout=0.2) for _ in range(400)]).mean(0)
    assert float((mean - called(case, tensors)).norm() / mean.norm()) < 0.05


def test_blocks_are_few_rows_high(monkeypatch: pytest.MonkeyPatch) -> None:
    case = Case(tokens=300, padding=((0, 300), (7, 300)), rest={"softcap": 3.0})
    tensors = [x.requires_grad_() for x in draw(case)]
    whole = with_gradients(called(case, tensors), tensors)
    monkeypatch.setattr(blocks, "ROWS", 17)
    for one, other in zip(with_gradients(called(case, tensors), tensors), whole, strict=True):
        assert torch.allclose(one, other, atol=1e-12)
