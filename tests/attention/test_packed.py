"""The CUDA path's planning, codes, merge and gradient, with a CPU loop in the kernel's place."""

from __future__ import annotations

import pytest
import torch

from focus.attention.checks import validate
from focus.attention.kernels import Segments
from focus.attention.packed import make_packed_plan, packed_attention, packed_refusal
from tests.attention.cases import Case, definition, draw, relative_error, with_gradients

CASES = [
    Case(90, 4, 1),
    Case(90, 4, 2, sinks=4),
    Case(63, 8, 3, window=1),
    Case(111, 4, 1, 1, routers="kv_head", sinks=2),
    Case(111, 4, 2, 1, routers="query_head", sinks=2),
    Case(80, 4, 2, 1, padding="left", batch=3, sinks=3),
    Case(80, 4, 2, 2, padding="right", batch=2, kind="ragged"),
    Case(70, 4, 1, padding="right", batch=3, routers="kv_head", heads=6),
    Case(50, 3, 1, kind="empty", sinks=2, layout="tokens"),
    Case(1, 2, 1),
    Case(60, 1, 1, window=60),
    Case(90, 8, 2, 2, batch=3, padding="left", sinks=3, extra=3),
    Case(90, 8, 1, 1, batch=2, padding="right", routers="query_head", extra=3),
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_output_and_gradients(case: Case) -> None:
    tensors, options = draw(case)

    def call(*leaves: torch.Tensor) -> torch.Tensor:
        x = validate(*leaves, scale=None, **options)
        return packed_attention(x, make_packed_plan(x))

    found = with_gradients(call, tensors)
    most = (1e-5, 1e-4, 1e-4, 1e-4)
    for one, exact, limit in zip(found, definition(tensors, options), most, strict=True):
        assert relative_error(one, exact) <= limit


def test_segments_leave_out_empty_lists() -> None:
    segments = Segments.of([0, 3, 3, 3, 10], torch.device("cpu"))
    assert segments.offsets.tolist() == [0, 3, 10]
    assert segments.offsets.dtype == torch.int32
    assert segments.longest == 7


@pytest.mark.parametrize(
    ("dtype", "dim", "groups", "message"),
    [
        (torch.float32, 64, 4, "half|float16"),
        (torch.bfloat16, 256, 4, "256"),
        (torch.bfloat16, 64, 4, None),
        (torch.float16, 128, 16, None),
    ],
)
def test_what_the_kernels_cannot_take(
    dtype: torch.dtype, dim: int, groups: int, message: str | None
) -> None:
    tensors, options = draw(Case(10, groups, dim=dim, dtype=dtype))
    refusal = packed_refusal(validate(*tensors, scale=None, **options))
    assert (refusal is None) == (message is None)
    if message is not None and refusal is not None:
        assert any(part in refusal for part in message.split("|"))
