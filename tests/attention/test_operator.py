"""The operators under torch's own checks, compilation and gradient checkpointing."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from focus.attention import focus_attention
from tests.attention.cases import Case, draw, needs_kernel, relative_error, with_gradients

KEEPS_ALL = Case(40, 4, 3)
CASES = [
    Case(40, 4, 1, sinks=2),
    Case(40, 4, 2, 1, batch=2, padding="left", routers="kv_head", extra=2),
    KEEPS_ALL,
    Case(40, 4, 2, heads=6, routers="query_head", dtype=torch.bfloat16),
    Case(30, 4, 1, dtype=torch.float64),
]
BACKENDS = ["auto", "stripes", pytest.param("native", marks=needs_kernel)]


def arguments(case: Case, backend: str) -> tuple[Any, ...]:
    (query, key, value), options = draw(case)
    membership, keys = options["membership"], options["key_membership"]
    four = [x if x is None or x.dim() == 4 else x.unsqueeze(1) for x in (membership, keys)]
    leaves = (x.requires_grad_() for x in (query, key, value))
    return (*leaves, *four, options["key_padding_mask"], options["extra_keys"], case.window,
            case.sinks, 0.25, backend)  # fmt: skip


@pytest.mark.parametrize(
    ("case", "backend"), [*((case, "auto") for case in CASES), (CASES[1], "stripes")], ids=str
)
def test_the_operators_are_as_torch_wants_them(case: Case, backend: str) -> None:
    """By the kernel, torch's own call and stripes, as ``auto`` finds; slow questions."""
    given = arguments(case, backend)
    torch.library.opcheck(torch.ops.focus.attention.default, given)
    with torch.no_grad():
        out, lse = torch.ops.focus.attention(*given)
        back = (torch.ones_like(out), *given[:3], out, lse, *given[3:])
        plain = [x.detach() if isinstance(x, Tensor) else x for x in back]
        torch.library.opcheck(torch.ops.focus.attention_backward.default, plain)


@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.parametrize("backend", ["auto", "stripes"])
def test_compiled_code_gives_the_same(case: Case, backend: str) -> None:
    torch._dynamo.reset()
    tensors, options = draw(case)

    def call(*leaves: Tensor, **given: Any) -> Tensor:
        return focus_attention(*(2 * x for x in leaves), backend=backend, **given) + 1

    compiled = torch.compile(call, backend="aot_eager", fullgraph=True)
    plain = with_gradients(call, tensors, **options)
    # Where every pair is kept, plain code makes torch's own call, which compiled code does not.
    tolerance = 1e-6 if case == KEEPS_ALL else 0.0
    for one, other in zip(with_gradients(compiled, tensors, **options), plain, strict=True):
        assert relative_error(one, other) <= tolerance


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("reentrant", [True, False])
def test_checkpoints_free_what_is_saved(backend: str, reentrant: bool) -> None:
    tensors, options = draw(Case(60, 4, 1, sinks=2, extra=2))
    seen: list[weakref.ref[Tensor]] = []

    def inside(*leaves: Tensor) -> Tensor:
        own = [x * 1 for x in leaves]
        seen.extend(weakref.ref(x) for x in own)
        return focus_attention(*own, backend=backend, **options)

    plain = with_gradients(inside, tensors)
    seen.clear()
    leaves = [x.detach().requires_grad_() for x in tensors]
    out = checkpoint(inside, *leaves, use_reentrant=reentrant)
    gc.collect()
    assert not any(each() is not None for each in seen)
    generator = torch.Generator().manual_seed(99)
    out.backward(torch.randn(out.shape, generator=generator))
    for one, other in zip([out, *(x.grad for x in leaves)], plain, strict=True):
        assert torch.equal(one.detach(), other)


def test_a_second_derivative_is_refused_but_by_the_definition() -> None:
    tensors, options = draw(Case(20, 4, 1))
    for backend, there in (("auto", False), ("stripes", False), ("dense", True)):
        leaves = [x.detach().requires_grad_() for x in tensors]
        out = focus_attention(*leaves, backend=backend, **options)
        (first,) = torch.autograd.grad(out.square().sum(), leaves[0], create_graph=True)
        if there:
            first.square().sum().backward()
        else:
            with pytest.raises(RuntimeError, match=r"focus.attention_backward"):
                first.square().sum().backward()


def test_half_precision_gradients_without_a_kernel() -> None:
    tensors, options = draw(Case(60, 4, 1, dtype=torch.float16, sinks=2))
    found = with_gradients(focus_attention, tensors, **options)
    exact = with_gradients(focus_attention, [x.double() for x in tensors], **options)
    for one, other in zip(found, exact, strict=True):
        assert one.dtype == torch.float16
        assert relative_error(one, other) < 2e-3
