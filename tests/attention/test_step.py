"""The compiled decoding step against the definition, and what it tells."""

from __future__ import annotations

import pytest
import torch

import focus.attention.decode as decode_module
from focus.attention.past import Past
from focus.attention.rule import Rule
from tests.attention.cases import needs_kernel
from tests.attention.pasts import CHUNKS, GRID, PAIRS, STEPS, Case
from tests.threads import threads

pytestmark = needs_kernel


@pytest.mark.parametrize("changes", [
    {}, {"padded": True}, {"routings": 2, "padded": True}, {"routings": 4}, {"key_heads": 1},
    {"heads": 10, "routings": 2}, {"heads": 10, "routings": 10}, {"dim": 80},
    {"batch": 3, "routings": 4, "padded": True}, {"extra": 3, "routings": 4, "padded": True},
])  # fmt: skip
@pytest.mark.parametrize(("dtype", "error"), [(torch.float32, 2e-6), (torch.bfloat16, 2e-2)])
@pytest.mark.parametrize(("chunks", "softcap"), [(STEPS, None), (CHUNKS, 3.0)])
def test_compiled_steps_are_the_definition(
    changes: dict, dtype: torch.dtype, error: float, chunks: list[int], softcap: float | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """Whole vectors of the head dimension, so that every step is the kernel's."""
    steps = []
    attended = decode_module.step.attend
    monkeypatch.setattr(decode_module.step, "attend", lambda *x: steps.append(0) or attended(*x))
    rules = PAIRS if changes else GRID
    for rule in rules:
        case = Case(rule, dtype=dtype, **{"dim": 16, **changes})
        out, total, _ = case.run(chunks, softcap)
        for name in ("query", "key", "value"):
            setattr(case, name, getattr(case, name).double())
        assert out.dtype == dtype
        assert (out.double() - case.expected(softcap)).abs().max() < error, rule
        assert total == int(case.kept().sum()), rule
    assert len(steps) == len(chunks) * len(rules)


def test_compiled_steps_over_long_lists() -> None:
    """Several spans of positions, and threads that share them."""
    tokens = 5000
    case = Case(Rule(16, 2, None, 2, 1, 1), tokens=tokens, batch=1, dtype=torch.float32, dim=16)
    expected = case.expected(rows=slice(tokens - 9, None))
    for count in (1, 3):
        with threads(count):
            past = Past(case.rule)
            case.step(past, 0, tokens - 9)
            out = torch.cat([case.step(past, t, t + 1)[0] for t in range(tokens - 9, tokens)], 2)
        assert torch.allclose(out, expected, atol=1e-6)


@pytest.mark.parametrize("routings", [1, 2, 10])
def test_compiled_steps_of_many_heads_and_a_long_window(routings: int) -> None:
    """More near keys than a tile, and more queries of a key head than go together."""
    rule = Rule(300, 3, None, 4, 1, 1)
    case = Case(rule, tokens=700, heads=10, routings=routings, dtype=torch.float32, dim=16)
    past = Past(rule)
    case.step(past, 0, 660)
    out = torch.cat([case.step(past, t, t + 1)[0] for t in range(660, 700)], 2)
    assert torch.allclose(out, case.expected(rows=slice(660, None)), atol=1e-6)


def test_compiled_steps_after_a_crop_and_of_chosen_sequences() -> None:
    case = Case(Rule(5, 2, None, 4, 1, 1), dtype=torch.float32, dim=16)
    past = Past(case.rule)
    for t in range(50):
        case.step(past, t, t + 1)
    past.crop(10)
    rows = torch.tensor([1, 1, 0])
    past.select(rows)
    out = torch.cat([case.step(past, t, t + 1, rows=rows)[0] for t in range(40, 60)], 2)
    assert torch.allclose(out, case.expected()[rows][:, :, 40:], atol=1e-6)


@pytest.mark.parametrize("name", ["query", "key", "value"])
@pytest.mark.parametrize("what", [float("nan"), float("inf"), -float("inf")])
def test_compiled_steps_tell_what_is_not_finite(name: str, what: float) -> None:
    case = Case(Rule(5, 2, None, 4, 1, 1), dtype=torch.float32, dim=16)
    # A key of minus infinity then weighs nothing, and the output is finite.
    case.query, case.key = case.query.abs(), case.key.abs()
    past = Past(case.rule)
    case.step(past, 0, 20)
    getattr(case, name)[0, 0, 20, 3] = what
    with pytest.raises(ValueError, match="NaN or infinity"):
        case.step(past, 20, 21)


def test_what_overflows_is_told_and_undone() -> None:
    """Finite tokens whose product is not."""
    case = Case(Rule(5, 2, None, 4, 1, 1), dtype=torch.float32, dim=16)
    expected, past = case.expected(), Past(case.rule)
    case.step(past, 0, 20)
    held = case.query[:, :, 20].clone(), case.key[:, :, 20].clone()
    case.query[:, :, 20], case.key[:, :, 20] = 3e38, 3e38
    with pytest.raises(ValueError, match="NaN or infinity"):
        case.step(past, 20, 21)
    case.query[:, :, 20], case.key[:, :, 20] = held
    out = torch.cat([case.step(past, t, t + 1)[0] for t in range(20, 60)], 2)
    assert torch.allclose(out, expected[:, :, 20:], atol=1e-6)
