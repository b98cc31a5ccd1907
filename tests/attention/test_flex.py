"""FlexAttention's block mask keeps exactly the defined pairs; what it cannot do is refused."""

from __future__ import annotations

import pytest
import torch

from focus.attention import dense_attention, flex, focus_attention
from tests.attention.cases import Case, draw

pytestmark = pytest.mark.filterwarnings("ignore:flex_attention called without:UserWarning")


@pytest.mark.parametrize(
    "case",
    [
        Case(200, 4, 1),
        Case(300, 8, 2, 1, window=130, sinks=4, routers="kv_head"),
        Case(200, 8, 2, 1, window=30, sinks=4, routers="query_head"),
        Case(129, 4, 1, padding="left", batch=2, sinks=3),
        Case(1, 2, 1),
        Case(260, 3, 1, kind="empty", window=1),
        Case(300, 8, 1, window=4, sinks=2, batch=2, padding="left", routers="kv_head", extra=2),
    ],
    ids=str,
)
def test_forward(case: Case) -> None:
    tensors, options = draw(case)
    found = focus_attention(*tensors, backend="flex", **options)
    torch.testing.assert_close(found, dense_attention(*tensors, **options), rtol=1e-4, atol=1e-5)


def test_backward_on_cpu_is_refused() -> None:
    tensors, options = draw(Case(20))
    tensors[0].requires_grad_()
    with pytest.raises(ValueError, match=r"flex.*backward.*decomposed"):
        focus_attention(*tensors, backend="flex", **options)
    with torch.no_grad():
        focus_attention(*tensors, backend="flex", **options)


def test_limits_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    tensors, options = draw(Case(20, groups=63))
    with pytest.raises(ValueError, match="62 groups"):
        focus_attention(*tensors, backend="flex", **options)
    monkeypatch.setattr(flex, "MOST_EAGER", 10)
    tensors, options = draw(Case(20))
    with pytest.raises(ValueError, match="decomposed"):
        focus_attention(*tensors, backend="flex", **options)
