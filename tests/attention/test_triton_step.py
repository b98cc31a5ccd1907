"""Triton's decoding step by its interpreter, on CPU, against the definition."""

from __future__ import annotations

import pytest
import torch

from focus.attention import decode
from focus.attention.rule import Rule
from focus.attention.triton import step
from tests.attention.pasts import Case

pytest.importorskip("triton", reason="Triton is not installed")


@pytest.fixture(autouse=True)
def interpreted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks so small that two programs of a query read several each, even of a short text."""
    monkeypatch.setattr(decode.step, "computes", lambda query: False)
    monkeypatch.setattr(step, "computes", lambda query, groups: query.shape[2] <= step.FEW)
    monkeypatch.setattr(step, "KEYS", 4)
    monkeypatch.setattr(step, "_programs", lambda queries, past: 2)


@pytest.mark.parametrize(
    ("rule", "routings", "padded"),
    [(Rule(1, 0, None, 4, 1, 1), 1, True), (Rule(9, 3, None, 4, 2, 2), 4, True),
     (Rule(9, 3, 20, 5, 2, 1), 4, False), (Rule(9, 3, 20, 5, 2, 1), 2, True),
     (Rule(5, 2, None, 4, 3, 3), 2, False), (Rule(60, 0, None, 4, 1, 1), 1, False)],
)  # fmt: skip
def test_every_step_is_the_definition(rule: Rule, routings: int, padded: bool) -> None:
    case = Case(rule, tokens=30, routings=routings, padded=padded, extra=routings - 1,
                dtype=torch.float32)  # fmt: skip
    out, total, _ = case.run([22, 1, 3, 1, 3])
    assert torch.allclose(out, case.expected(), atol=2e-6)
    assert total == int(case.kept().sum())


@pytest.mark.parametrize(
    ("dtype", "changes"),
    [(torch.float32, {"key_heads": 4, "routings": 4}), (torch.float32, {"key_heads": 1}),
     (torch.float32, {"heads": 2, "key_heads": 1, "batch": 3, "dim": 24}),
     (torch.float16, {"heads": 2})],
)  # fmt: skip
def test_softcap_and_head_layouts(dtype: torch.dtype, changes: dict[str, int]) -> None:
    case = Case(Rule(5, 2, None, 4, 1, 1), tokens=30, dtype=dtype, **changes)
    out, _, _ = case.run([25, 1, 1, 3], softcap=3.0)
    exact = case.expected(softcap=3.0)
    assert torch.allclose(out, exact, atol=2e-6 if dtype == torch.float32 else 4e-3)


def test_lists_grow_and_a_past_goes_on_after_a_crop(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("focus.attention.past.ROOM", 1)
    case = Case(Rule(5, 2, None, 2, 1, 1), tokens=28, batch=1, dtype=torch.float32)
    out, _, past = case.run([1] * 4 + [8] * 3)
    assert torch.allclose(out, case.expected(), atol=2e-6)
    past.crop(10)
    again, _ = case.step(past, 18, 19)
    assert torch.allclose(again, case.expected()[:, :, 18:19], atol=2e-6)
