"""The operator under torch's own checks, compilation and gradient checkpointing."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks
from torch.utils.checkpoint import checkpoint

from focus.attention.train import kernel
from focus.attention.train.operator import gated_attention_backward_op, gated_attention_op
from tests.attention.train.definition import Case, called, draw, with_gradients

GATES = ["log", "eq2", "straight_through"]


def small(gate: str = "log", rest: dict[str, Any] | None = None) -> Case:
    return Case(gate=gate, tokens=150, dim=16, heads=(4, 2, 4, 2), rest=rest or {})


def leaves(case: Case, dtype: torch.dtype = torch.float32) -> list[Tensor]:
    return [x.to(dtype).requires_grad_() for x in draw(case)]


# What torch asks depends on which tensors there are, their dtype, and who computes: slow questions.
@pytest.mark.parametrize(("gate", "rest", "dtype"), [
    ("log", {}, torch.float32), ("log", {}, torch.float64),
    ("log", {"dropout": 0.2}, torch.float32), ("eq2", {"softcap": 5.0}, torch.float32),
    ("hard", {}, torch.float32), ("hard", {"limit": 30}, torch.float32),
])  # fmt: skip
def test_opcheck(gate: str, rest: dict[str, Any], dtype: torch.dtype) -> None:
    case = small()
    tensors, dropout = leaves(case, dtype), rest.get("dropout", 0.0)
    masks = (torch.ones(2, 150, dtype=torch.bool), None, torch.tensor(3) if dropout else None)
    rule = (gate, 16, 4, 0.25, rest.get("limit"), rest.get("softcap"), dropout)
    torch.library.opcheck(gated_attention_op, (*tensors, *masks, *rule))
    with torch.no_grad():
        out, lse = gated_attention_op(*tensors, *masks, *rule)
        torch.library.opcheck(
            gated_attention_backward_op, (torch.ones_like(out), out, lse, *tensors, *masks, *rule)
        )


@pytest.mark.parametrize("gate", GATES)
@pytest.mark.parametrize("compiled_gate", [True, False])
def test_compiled_equals_eager(
    gate: str, compiled_gate: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not compiled_gate:
        monkeypatch.setattr(kernel, "library", lambda: None)
    case = small(gate)
    tensors = leaves(case)

    def run() -> list[Tensor]:
        return with_gradients(2 * called(case, [x * 1.5 for x in tensors]), tensors)

    torch._dynamo.reset()
    traced = torch.compile(lambda *x: 2 * called(case, [each * 1.5 for each in x]),
                           backend="aot_eager", fullgraph=gate != "straight_through")  # fmt: skip
    for one, other in zip(with_gradients(traced(*tensors), tensors), run(), strict=True):
        assert torch.allclose(one, other, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("rest", [{}, {"dropout": 0.2}])
@pytest.mark.parametrize("gate", GATES)
@pytest.mark.parametrize("reentrant", [True, False])
def test_checkpointing_changes_nothing(gate: str, reentrant: bool, rest: dict[str, Any]) -> None:
    case = small(gate, rest)
    tensors = leaves(case)

    def twice(*x: Tensor) -> Tensor:
        return called(case, [called(case, list(x)), *x[1:]])

    torch.manual_seed(1)
    plain = with_gradients(twice(*tensors), tensors)
    torch.manual_seed(1)
    out = checkpoint(twice, *tensors, use_reentrant=reentrant)
    slope = torch.randn(out.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    out.backward(slope.float())
    assert torch.equal(out, plain[0])
    for x, wanted in zip(tensors, plain[1:], strict=True):
        assert x.grad is not None
        assert torch.equal(x.grad, wanted)


def test_checkpointing_keeps_nothing_of_the_operator() -> None:
    """Within a checkpoint only what goes in is held: no tensor hides beside those saved."""
    case, kept = small(), 0
    tensors = leaves(case)

    def count(x: Tensor) -> Tensor:
        nonlocal kept
        kept += 1
        return x

    with saved_tensors_hooks(count, lambda x: x):
        out = called(case, tensors)
    assert kept == 7  # the inputs, the output and the log-sum-exp
    node = out.grad_fn
    while node is not None and not hasattr(node, "rule"):
        node = node.next_functions[0][0]
    assert node is not None
    assert not any(isinstance(each, Tensor) for each in vars(node).values())


def test_a_second_derivative_is_refused() -> None:
    case = small()
    tensors = leaves(case)
    (slope,) = torch.autograd.grad(called(case, tensors).sum(), tensors[0], create_graph=True)
    with pytest.raises((RuntimeError, NotImplementedError)):
        slope.sum().backward()


def test_two_calls_before_one_backward() -> None:
    case = small()
    tensors, others = leaves(case), [2 * x.detach() for x in leaves(case)]
    alone = with_gradients(called(case, tensors), tensors)
    first = called(case, tensors)
    called(case, others)
    for one, other in zip(with_gradients(first, tensors), alone, strict=True):
        assert torch.equal(one, other)
