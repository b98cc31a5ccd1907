"""The compiled decoding step against the definition, and what it tells."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from focus.attention.native import step
from focus.attention.past import Past, Rule
from tests.attention.cases import needs_kernel
from tests.attention.pasts import GRID, STEPS, Case, file_early

pytestmark = needs_kernel


@pytest.fixture(autouse=True)
def small_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pages from the first token on, and a commit every few steps."""
    file_early(monkeypatch)


@pytest.mark.parametrize("changes", [
    {}, {"padded": True}, {"routings": 2, "padded": True}, {"routings": 4}, {"key_heads": 1},
    {"heads": 10, "routings": 2}, {"heads": 10, "routings": 10}, {"dim": 80},
    {"batch": 3, "routings": 4, "padded": True},
])  # fmt: skip
@pytest.mark.parametrize(("dtype", "error"), [(torch.float32, 2e-6), (torch.bfloat16, 2e-2)])
def test_compiled_steps_are_the_definition(
    changes: dict, dtype: torch.dtype, error: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whole vectors of the head dimension, so that every step is the kernel's."""
    steps = []
    attended = step.attend
    monkeypatch.setattr(step, "attend", lambda *x: steps.append(0) or attended(*x))
    for window, sinks, limit, (groups, of_query, of_key) in GRID:
        rule = Rule(window, sinks, limit, groups, of_query, of_key)
        case = Case(rule, dtype=dtype, **{"dim": 16, **changes})
        out, total, _ = case.run(STEPS)
        for name in ("query", "key", "value"):
            setattr(case, name, getattr(case, name).double())
        assert out.dtype == dtype
        assert (out.double() - case.expected()).abs().max() < error, rule
        assert total == int(case.kept().sum()), rule
    assert len(steps) == 60 * len(GRID)


def test_compiled_steps_over_long_pages() -> None:
    """Several chunks of a page, and threads that share them."""
    tokens, before = 1500, torch.get_num_threads()
    case = Case(Rule(16, 2, None, 2, 1, 1), tokens=tokens, batch=1, dtype=torch.float32, dim=16)
    expected = case.expected()[:, :, -9:]
    try:
        for threads in (1, 3):
            torch.set_num_threads(threads)
            past = Past(case.rule)
            case.step(past, 0, tokens - 9)
            out = torch.cat([case.step(past, t, t + 1)[0] for t in range(tokens - 9, tokens)], 2)
            assert torch.allclose(out, expected, atol=1e-6)
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("routings", [1, 2, 10])
def test_compiled_steps_under_a_long_mask(routings: int) -> None:
    """More near keys than a chunk, and more queries of a key head than go together."""
    rule = Rule(300, 3, None, 4, 1, 1)
    case = Case(rule, tokens=700, heads=10, routings=routings, dtype=torch.float32, dim=16)
    past = Past(rule)
    case.step(past, 0, 660)
    out = torch.cat([case.step(past, t, t + 1)[0] for t in range(660, 700)], 2)
    assert torch.allclose(out, case.expected()[:, :, -40:], atol=1e-6)


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


@needs_kernel
@pytest.mark.parametrize(
    ("where", "what"), [("key", float("nan")), ("key", float("inf")), ("value", float("nan"))]
)
def test_the_compiled_step_itself_gives_nan_for_nan(where: str, what: float) -> None:
    """Whatever decode_attention asks of its own tokens: what is in the cache is the kernel's."""
    generator = torch.Generator().manual_seed(0)
    query = torch.rand(1, 2, 1, 16, generator=generator)
    key, value = torch.rand(2, 300, 16, generator=generator)
    {"key": key, "value": value}[where][280, 3] = what
    runs = [step.KeyRun(0, 1, key, value, 0, 300), step.KeyRun(1, 1, key, value, 20, 9)]
    out = step.attend(query, runs, 0.25)
    assert out[0, 0].isnan().any()
    assert out[0, 1].isfinite().all()


@pytest.mark.parametrize(("change", "message"), [
    (lambda x: x.double(), "dtype"), (lambda x: x.T.contiguous().T, "contiguous"),
])  # fmt: skip
@pytest.mark.parametrize("name", ["key", "value"])
def test_the_compiled_step_refuses_rows_that_it_cannot_address(
    name: str, change: Callable, message: str
) -> None:
    tensors = {"key": torch.rand(30, 16), "value": torch.rand(30, 16)}
    tensors[name] = change(tensors[name])
    with pytest.raises(ValueError, match=message):
        step.attend(torch.rand(1, 1, 1, 16), [step.KeyRun(0, 1, **tensors, start=0, keys=30)], 0.25)
