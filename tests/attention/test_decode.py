"""Decoding over a past against the definition, and what the past holds."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode

import focus.attention.decode as decode_module
from focus.attention.bits import pack, unpack
from focus.attention.dense import attend
from focus.attention.past import Past
from focus.attention.rule import Rule
from tests.attention.pasts import CHUNKS, DIM, GRID, PAIRS, STEPS, Case


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("routings", [1, 2, 4])
@pytest.mark.parametrize("chunks", [STEPS, CHUNKS])
def test_every_step_is_the_definition(chunks: list[int], routings: int, padded: bool) -> None:
    for rule in GRID if padded and routings == 2 else PAIRS:
        case = Case(rule, routings=routings, padded=padded)
        out, total, _ = case.run(chunks)
        assert torch.allclose(out, case.expected(), atol=1e-12), rule
        assert total == int(case.kept().sum()), rule


@pytest.mark.parametrize("changes", [{"key_heads": 4, "routings": 4}, {"key_heads": 1},
                                     {"routings": 4},
                                     {"batch": 3, "padded": True}])  # fmt: skip
@pytest.mark.parametrize("softcap", [None, 3.0])
def test_head_layouts_batches_and_softcap(changes: dict, softcap: float | None) -> None:
    case = Case(Rule(5, 2, None, 4, 1, 1), **changes)
    for chunks in (STEPS, CHUNKS):
        out, _, _ = case.run(chunks, softcap)
        assert torch.allclose(out, case.expected(softcap), atol=1e-12)


@pytest.mark.parametrize("routings", [(4, 4), (4, 1), (2, 1), (3, 3)])
def test_groups_that_do_not_fit_the_heads_are_refused(routings: tuple[int, int]) -> None:
    case = Case(Rule(5, 2, None, 4, 1, 1))
    case.query_groups, case.key_groups = (
        x[:, :1].expand(-1, count, -1, -1)
        for x, count in zip((case.query_groups, case.key_groups), routings, strict=True)
    )
    with pytest.raises(ValueError, match=r"^key_groups:"):
        case.run([1])


@pytest.mark.parametrize(
    ("dtype", "error"), [(torch.float32, 2e-6), (torch.bfloat16, 2e-2), (torch.float16, 2e-3)]
)
@pytest.mark.parametrize("softcap", [None, 3.0])
def test_other_dtypes(dtype: torch.dtype, error: float, softcap: float | None) -> None:
    case = Case(Rule(5, 2, None, 4, 1, 1), dtype=dtype)
    out, _, _ = case.run(CHUNKS, softcap)
    assert out.dtype == dtype
    for name in ("query", "key", "value"):
        setattr(case, name, getattr(case, name).double())
    assert (out.double() - case.expected(softcap)).abs().max() < error


@pytest.mark.parametrize("rule", [Rule(60, 0, None, 4, 1, 1), Rule(3, 0, None, 1, 1, 1),
                                  Rule(3, 0, None, 4, 3, 3)])  # fmt: skip
def test_limit_cases_are_full_attention(rule: Rule) -> None:
    case = Case(rule)
    causal = torch.ones(60, 60, dtype=torch.bool).tril().expand(2, 1, -1, -1)
    full = attend(case.query, case.key, case.value, DIM**-0.5, kept=causal)
    assert torch.allclose(case.run(STEPS)[0], full, atol=1e-12)
    assert torch.allclose(case.run(CHUNKS)[0], full, atol=1e-12)


def test_many_queries_are_masked_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decode_module, "MASK_ENTRIES", 2000)
    case = Case(Rule(5, 2, 40, 4, 2, 1), padded=True, extra=3, routings=4)
    assert torch.allclose(case.run([20, 40])[0], case.expected(), atol=1e-12)


@pytest.mark.parametrize("groups", [1, 7, 64, 65, 130])
def test_groups_as_bits(groups: int) -> None:
    own = torch.rand(2, 3, groups, generator=torch.Generator().manual_seed(0)) < 0.5
    assert torch.equal(unpack(pack(own), groups), own)
    case = Case(Rule(3, 0, None, max(groups, 3), 2, 2))
    assert torch.allclose(case.run(STEPS)[0], case.expected(), atol=1e-12)


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_a_past_key_is_read_once_by_exactly_the_queries_that_the_mask_keeps(
    data: st.DataObject,
) -> None:
    """Equal logits and one-hot values: an output row is the kept set, each key weighed once."""
    groups = data.draw(st.integers(1, 6))
    of_query = data.draw(st.integers(1, min(3, groups)))
    of_key = data.draw(st.integers(1, min(3, groups)))
    limit = data.draw(st.none() | st.integers(1, 40))
    rule = Rule(data.draw(st.integers(1, 30)), data.draw(st.integers(0, 6)), limit, groups,
                of_query, of_key)  # fmt: skip
    chunks = data.draw(st.lists(st.integers(1, 9), min_size=1, max_size=12))
    tokens = sum(chunks)
    case = Case(rule, tokens, batch=2, heads=2, routings=data.draw(st.sampled_from([1, 2])))
    if data.draw(st.booleans()):
        flags = st.lists(st.booleans(), min_size=tokens, max_size=tokens)
        case.real = torch.tensor([data.draw(flags), data.draw(flags)])
    case.query = torch.zeros(2, 2, tokens, tokens, dtype=torch.float64)
    case.key = torch.zeros_like(case.query)
    case.value = torch.eye(tokens, dtype=torch.float64).expand(2, 2, -1, -1)
    out, total, past = case.run(chunks)
    kept = case.kept().expand(-1, 2, -1, -1).double()
    expected = kept / kept.sum(-1, keepdim=True).clamp_min(1)
    assert torch.allclose(out, expected, atol=1e-12)
    assert total == int(case.kept().sum())
    if past.lists is not None:
        assert_lists_are_those_of_the_groups(case, past)


def assert_lists_are_those_of_the_groups(case: Case, past: Past) -> None:
    real = torch.ones(2, case.tokens, dtype=torch.bool) if case.real is None else case.real
    listed = real & (real.cumsum(1) > case.rule.sinks)
    for b, routings in enumerate(case.key_groups):
        for r, groups in enumerate(routings):
            for g in range(case.rule.groups):
                own = past.lists[b, r, g, : past.lengths[b, r, g]]
                expected = (groups[:, g] & listed[b]).nonzero().flatten()
                assert torch.equal(own.long(), expected[expected >= past.first])
    assert past.longest >= int(past.lengths.max())


def test_garbage_in_padding_reaches_nothing() -> None:
    case = Case(Rule(5, 2, None, 4, 1, 1), padded=True)
    expected = case.expected()
    assert case.real is not None
    for name in ("query", "key", "value"):
        getattr(case, name)[0][:, ~case.real[0]] = float("nan")
    for chunks in (STEPS, CHUNKS):
        assert torch.allclose(case.run(chunks)[0], expected, atol=1e-12)


SYNCHRONISING = ("_local_scalar_dense", "nonzero", "masked_select", "unique", "equal", "item")


class Asked(TorchDispatchMode):
    """Which operations ran that make the host wait for a device."""

    def __init__(self) -> None:
        super().__init__()
        self.ran: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.ran.append(func.overloadpacket.__name__)
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("softcap", [None, 3.0])
@pytest.mark.parametrize("count", [1, 4, 30])
def test_a_step_elsewhere_asks_its_device_nothing(
    count: int, softcap: float | None, padded: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(decode_module, "is_finite", lambda *_: True)  # it is asked on CPUs alone
    case = Case(Rule(5, 2, 50, 4, 2, 2), padded=padded, extra=2, routings=4)
    past = Past(case.rule)
    case.call(past, 0, 20)
    case.call(past, 20, 21)
    with Asked() as asked:
        case.call(past, 21, 21 + count, softcap)
    assert len(asked.ran) > 20
    assert not [name for name in asked.ran if name in SYNCHRONISING]


def test_a_step_elsewhere_is_as_many_operations_whatever_its_size() -> None:
    ran = []
    for batch, groups in ((1, 4), (3, 9)):
        case = Case(Rule(5, 2, None, groups, 2, 2), batch=batch, routings=4, extra=2)
        past = Past(case.rule)
        case.call(past, 0, 40)
        with Asked() as asked:
            case.call(past, 40, 41)
        ran.append(asked.ran)
    assert len(ran[0]) == len(ran[1]) < 300
