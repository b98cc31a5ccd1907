"""The CUDA path's planning, codes, merge and gradient, with a CPU loop in the kernel's place."""

from __future__ import annotations

import pytest
import torch

from focus.attention import flash, focus_attention, varlen
from focus.attention.checks import check_arguments
from focus.attention.dense import checked
from tests.attention.cases import Case, check, draw

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
    check(case, "rehearsed")


def test_merging_costs_what_rows_have_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    """And not what the row with most of them has: heads may look into unequal numbers."""
    merged: list[int] = []
    merge = varlen._merge

    def counted(*arguments: torch.Tensor) -> None:
        merged.append(len(arguments[-1]))
        merge(*arguments)

    monkeypatch.setattr(varlen, "_merge", counted)
    tensors, options = draw(Case(60, 8, 2, 1, kind="ragged", routers="query_head"))
    x = checked(check_arguments(*tensors, **options))
    varlen.forward(x)
    sizes = x.membership.sum(-1).flatten()
    assert merged == [int((sizes >= n).sum()) for n in range(1, int(sizes.max()) + 1)]
    assert len(set(merged)) > 1


def test_it_is_merged_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(varlen, "MERGE_ROWS", 17)
    check(Case(90, 4, 2, sinks=4), "rehearsed")


def test_a_package_that_is_not_there_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    tensors, options = draw(Case(20))
    monkeypatch.setattr(flash, "installed", lambda: False)
    with pytest.raises(ValueError, match="flash-attn is not installed"):
        focus_attention(*tensors, backend="flash-attn", **options)
    monkeypatch.setattr(flash, "installed", lambda: True)
    for backend in ("flash-attn", "varlen"):
        with pytest.raises(ValueError, match=f"query: is on cpu; {backend} is for CUDA"):
            focus_attention(*tensors, backend=backend, **options)


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
    dtype: torch.dtype, dim: int, groups: int, message: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    tensors, options = draw(Case(10, groups, dim=dim, dtype=dtype))
    x = checked(check_arguments(*tensors, **options))
    monkeypatch.setattr(torch.Tensor, "is_cuda", True)
    refusal = varlen.refusal(x)
    assert (refusal is None) == (message is None)
    if message is not None and refusal is not None:
        assert any(part in refusal for part in message.split("|"))
