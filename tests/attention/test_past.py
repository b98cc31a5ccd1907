"""What a past holds, and how it grows, is cropped and goes on."""

from __future__ import annotations

import pytest
import torch

import focus.attention.past as past_module
from focus.attention.past import Past
from focus.attention.rule import Rule
from tests.attention.pasts import CHUNKS, STEPS, Case


def test_a_cache_goes_on_in_its_own_dtype() -> None:
    case = Case(Rule(5, 2, None, 4, 1, 1), dtype=torch.bfloat16, dim=16)
    past = Past(case.rule)
    case.step(past, 0, 20)
    for name in ("query", "key", "value"):
        setattr(case, name, getattr(case, name).float())
        with pytest.raises(ValueError, match=r"^past_key_values: torch.bfloat16, torch.float32"):
            case.step(past, 20, 21)


def test_buffers_and_lists_grow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(past_module, "ROOM", 1)
    monkeypatch.setattr(past_module, "REFRESH", 16)
    case = Case(Rule(5, 2, None, 2, 1, 1), tokens=300, batch=1)
    out, _, past = case.run([1] * 100 + [50] + [1] * 150)
    assert torch.allclose(out, case.expected(), atol=1e-12)
    assert past.rows.shape[2] < 1.3 * 300 + 2


def test_a_short_text_needs_no_lists() -> None:
    case = Case(Rule(60, 2, None, 4, 1, 1))
    assert case.run(CHUNKS)[2].lists is None
    case = Case(Rule(59, 2, None, 4, 1, 1))
    assert case.run(CHUNKS)[2].lists is not None


def test_what_the_models_own_window_has_passed_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(past_module, "ROOM", 8)
    case = Case(Rule(3, 2, 20, 4, 1, 1), tokens=400, batch=1)
    out, _, past = case.run([1] * 400)
    assert torch.allclose(out, case.expected(), atol=1e-12)
    assert past.rows.shape[2] < 60
    key, _ = past.ordered()
    assert torch.equal(key[:, :, past.first :], case.key[:, :, past.first :])
    assert not key[:, :, : past.first].any()


def test_no_key_is_kept_twice() -> None:
    tokens = 3000
    case = Case(Rule(16, 4, None, 8, 2, 2), tokens, batch=1, dtype=torch.float32)
    past = Past(case.rule)
    case.step(past, 0, tokens - 1)
    case.step(past, tokens - 1, tokens)
    assert past.prompt is None
    assert past.rows.shape[2] < 1.25 * tokens + past_module.ROOM + 2


def test_lists_have_room_for_the_longest_group_not_for_the_prompt() -> None:
    case = Case(Rule(16, 4, None, 8, 1, 1), 600, batch=1, dtype=torch.float32)
    past, prompt = Past(case.rule), slice(0, 599)
    past.begin(case.key[:, :, prompt], case.value[:, :, prompt], case.key_groups[:, :, prompt],
               None)  # fmt: skip
    case.step(past, 599, 600)
    assert past.lists.shape[3] < 1.25 * int(past.lengths.max()) + past_module.ROOM + 3


def test_counts_outlive_the_step() -> None:
    case = Case(Rule(5, 2, None, 4, 1, 1), batch=1)
    past = Past(case.rule)
    case.step(past, 0, 40)
    _, kept = case.call(past, 40, 41)
    now = kept()
    case.step(past, 41, 42)
    past.crop(6)
    case.step(past, 36, 37)
    assert kept() == now


@pytest.mark.parametrize(("limit", "padded"), [(None, True), (20, False), (20, True)])
@pytest.mark.parametrize(("routings", "extra"), [(1, 0), (2, 0), (1, 3), (4, 3)])
def test_crop_select_and_go_on(limit: int | None, padded: bool, routings: int, extra: int) -> None:
    rule = Rule(5, 3, limit, 4, 2, 2)
    case = Case(rule, batch=3, routings=routings, padded=padded, extra=extra)
    expected = case.expected()
    for remove in (1, 3, 12, 38):
        past = Past(case.rule)
        past.record = True
        for start, stop in ((0, 10), (10, 30), (30, 31), (31, 40)):
            case.step(past, start, stop)
        past.crop(remove)
        rows = torch.tensor([2, 0, 0, 1])
        past.select(rows)
        outs = [case.step(past, t, t + 1, rows=rows)[0] for t in range(40 - remove, 60)]
        assert torch.allclose(torch.cat(outs, 2), expected[rows, :, 40 - remove :], atol=1e-12)


def test_copies_of_a_sequence_go_on_apart() -> None:
    case = Case(Rule(5, 3, None, 4, 1, 1), batch=2)
    past = Past(case.rule)
    case.step(past, 0, 30)
    case.step(past, 30, 40)
    past.select(torch.tensor([0, 0]))
    # Different suffixes: the second copy goes on as sequence 1 does.
    for name in ("key", "value", "key_groups"):
        tensor = getattr(case, name)
        tensor[1, :, :40] = tensor[0, :, :40]
    out = torch.cat([case.step(past, t, t + 1)[0] for t in range(40, 60)], 2)
    assert torch.allclose(out, case.expected()[:, :, 40:], atol=1e-12)


def test_a_crop_that_needs_dropped_keys_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(past_module, "ROOM", 1)
    case = Case(Rule(3, 0, 10, 4, 1, 1))
    _, _, past = case.run(STEPS)
    assert past.first
    with pytest.raises(ValueError, match="activate_past_recording"):
        past.crop(45)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("what", ["key", "gradient"])
def test_a_call_that_fails_leaves_the_past_as_it_was(dtype: torch.dtype, what: str) -> None:
    case = Case(Rule(5, 2, None, 4, 2, 2), dtype=dtype, dim=16, padded=True)
    expected, past = case.expected(), Past(case.rule)
    case.step(past, 0, 20)
    good = case.key[0, 0, 20, 0].clone()
    case.key[0, 0, 20, 0] = float("inf")
    with pytest.raises(ValueError, match="NaN or infinity"):
        case.step(past, 20, 21)
    case.key[0, 0, 20, 0] = good
    case.query.requires_grad_(what == "gradient")
    if what == "gradient":
        with pytest.raises(ValueError, match="no gradient"):
            case.step(past, 20, 21)
        case.query.requires_grad_(False)
    out = torch.cat([case.step(past, t, t + 1)[0] for t in range(20, 60)], 2)
    assert torch.allclose(out, expected[:, :, 20:], atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_a_past_of_inference_mode_goes_on_outside(dtype: torch.dtype) -> None:
    case = Case(Rule(5, 2, None, 4, 2, 2), dtype=dtype, dim=16)
    past = Past(case.rule)
    with torch.inference_mode():
        case.step(past, 0, 20)
        case.step(past, 20, 21)
        past.select(torch.tensor([0, 1]))
    out = torch.cat([case.step(past, t, t + 1)[0] for t in range(21, 60)], 2)
    assert torch.allclose(out, case.expected()[:, :, 21:], atol=1e-5)
